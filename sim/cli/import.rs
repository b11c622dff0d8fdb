//! `windtunnel import FRAMEWORK FILE`: the scenario of another framework's configuration. `windtunnel import trace FILE…` reads traces.

mod log;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Outcome, Written, output, print};
use windtunnel::files;
use windtunnel::import::{self, Machine, Request};

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::IMPORT, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Whose configuration it is.
    #[arg(required = true, value_parser = clap::builder::PossibleValuesParser::new(import::names()))]
    framework: Option<String>,
    /// The configuration: a file, or a launch script.
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Keys of the framework that the command line sets.
    #[arg(value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// What stands on the framework's own command line, as it is written there: --key value, --key=value.
    #[arg(value_name = "WORDS", last = true)]
    words: Vec<String>,
    #[command(flatten)]
    machine: On,
    /// The framework's release, where the file does not tell.
    #[arg(long, value_name = "RELEASE")]
    version: Option<String>,
    /// Write the scenario to this file instead of printing it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Say what a profiler's trace holds: the machine, steps and where their time went, the largest kernels.
    Trace(trace::Args),
    /// Say what a run's log has measured, as a receipt: step times, memory, MFU, without warm-up.
    Log(log::Args),
}

/// The machine of a configuration, which does not name it.
#[derive(Clone, Debug, clap::Args)]
pub struct On {
    /// The machine, where the file does not name it: a shipped topology or the path of a file, and its size: h100-sxm-80gb:8 is 8
    /// nodes, tpu-v6e:4x4 a slice.
    #[arg(long, value_name = "TOPOLOGY[:SIZE]")]
    pub on: Option<String>,
    /// Its nodes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    nodes: Option<u32>,
    /// Some chips of one node, or of each of --nodes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    chips: Option<u32>,
    /// A slice of a TPU pod, such as 4x4, in place of --nodes.
    #[arg(long, value_name = "SHAPE")]
    slice: Option<String>,
    /// Slices, where there are several.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    slices: Option<u32>,
    /// The model of an imported configuration that names none: a shipped one, or the path of a Hugging Face config.json.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
}

impl On {
    /// Whether any of it is written.
    pub fn is_written(&self) -> bool {
        self.on.is_some()
            || self.nodes.is_some()
            || self.chips.is_some()
            || self.slice.is_some()
            || self.slices.is_some()
            || self.model.is_some()
    }

    /// The machine that the flags name, with the size behind the colon of `--on` where there is one.
    ///
    /// # Errors
    /// A size is stated twice.
    pub fn machine(&self) -> Result<Machine, Failure> {
        let mut machine = Machine {
            on: self.on.clone(),
            nodes: self.nodes,
            chips: self.chips,
            slice: self.slice.clone(),
            slices: self.slices,
        };
        let Some((name, size)) = self.on.as_deref().and_then(sized) else { return Ok(machine) };
        if machine.nodes.is_some() || machine.chips.is_some() || machine.slice.is_some() {
            let message = format!("--on {name}:{size} says how many already: leave out --nodes, --chips and --slice");
            return Err(Failure::input(message));
        }
        machine.on = Some(name.to_owned());
        match size.parse() {
            Ok(nodes) => machine.nodes = Some(nodes),
            Err(_) => machine.slice = Some(size.to_owned()),
        }
        Ok(machine)
    }

    /// The model that `--model` names.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// A machine and its size, `h100-sxm-80gb:8`, `tpu-v6e:4x4` or `tpu-v5p:v5p-128`; a colon within a path is none of a size.
fn sized(on: &str) -> Option<(&str, &str)> {
    let is_count = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_name = |size: &str| size.rsplit_once('-').is_some_and(|(of, count)| of.contains('v') && is_count(count));
    let is_size = |size: &str| size.split('x').all(is_count) || is_name(size) || size.starts_with("tpu7x-");
    on.rsplit_once(':').filter(|(name, size)| !name.is_empty() && is_size(size))
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        Some(What::Trace(args)) => return trace::run(args),
        Some(What::Log(args)) => return log::run(args),
        None => {}
    }
    let (Some(framework), Some(path)) = (&args.framework, &args.file) else {
        return Err(Failure::input("name a framework and a configuration: windtunnel import FRAMEWORK FILE"));
    };
    let importer = import::find(framework).map_err(Failure::input)?;
    let out = output(args.out.as_ref())?;
    let (file, text) = super::read_named(path, "configuration")?;
    let overrides = [args.keys.as_slice(), args.words.as_slice()].concat();
    let request = Request {
        file: &file,
        text: &text,
        overrides: &overrides,
        machine: args.machine.machine()?,
        version: args.version.as_deref(),
        model: args.machine.model.as_deref(),
    };
    let mut imported = import::import(importer, &request).map_err(Failure::input)?;
    // A scenario that is refused is no answer. One that is understood, and for whose parts there are no rules yet, says so.
    let scenario = imported.scenario().map_err(Failure::input)?;
    if let Some(why) = imported.not_simulated(&scenario) {
        files::note(&format!("note: {why}"));
        imported.note(why);
    }
    imported.warnings().iter().for_each(|line| files::note(&format!("note: {line}")));
    match out {
        Some(file) => {
            let hint = format!(": windtunnel run {}", file.path().display());
            let mut written = Written::default();
            written.write(file, &imported.text(), &hint);
            written.report("")?;
        }
        None => print(&imported.text())?,
    }
    Ok(ExitCode::SUCCESS)
}
