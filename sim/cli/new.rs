//! `windtunnel new`: a scenario to begin with, by a few answers.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::{Failure, Outcome, Written, output, print, width};
use windtunnel::files::{self, Output};
use windtunnel::hardware;
use windtunnel::near::did_you_mean;
use windtunnel::report::text::table_within;
use windtunnel::scenario::Runtime;
use windtunnel::scenario::fresh::Fresh;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::samples::{self, SAMPLES};

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::NEW)]
pub struct Args {
    /// The framework, as scenarios name it: fsdp2, megatron, deepspeed, xla and others.
    #[arg(long, value_name = "NAME")]
    framework: Option<String>,
    /// The model: a shipped one's name, or a path of a config.json or a model file.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The machine: a shipped topology, or the path of a file.
    #[arg(long, value_name = "TOPOLOGY")]
    on: Option<String>,
    /// Nodes of GPUs; one, if nobody says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    nodes: Option<u32>,
    /// Some chips of one node, in place of --nodes.
    #[arg(long, value_name = "N", conflicts_with = "nodes", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    chips: Option<u32>,
    /// A slice of a TPU pod, such as 4x4, in place of --nodes.
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["nodes", "chips"])]
    slice: Option<String>,
    /// Tokens of a sequence.
    #[arg(long, value_name = "S", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    sequence: u64,
    /// Sequences of a micro-batch.
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    micro: u64,
    /// Write this shipped sample instead: a scenario of a real run, with its comments.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["framework", "model", "on", "nodes", "chips", "slice"])]
    sample: Option<String>,
    /// List the shipped samples.
    #[arg(long, conflicts_with_all = ["sample", "framework", "model", "on", "out"])]
    list: bool,
    /// Write to this file instead of printing.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    if args.list {
        let rows = SAMPLES.iter().map(|sample| vec![sample.name.to_owned(), sample.about().to_owned()]);
        print(&format!("{}\n", table_within(&["name", "what it is"], rows.collect(), &[], width())))?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = output(args.out.as_ref())?;
    if let Some(name) = &args.sample {
        write(out, &sample(name)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let frameworks: Vec<&str> = Runtime::ALL.into_iter().map(Runtime::written).collect();
    let machines: Vec<&str> = hardware::registry().into_iter().map(|listed| listed.name).collect();
    let runtime = answer(args.framework.as_ref(), "--framework", "Which framework", "fsdp2", &frameworks)?;
    let model = answer(
        args.model.as_ref(),
        "--model",
        "Which model (a shipped one's name, or a config.json)",
        "llama-3.1-8b",
        &[],
    )?;
    let topology = answer(args.on.as_ref(), "--on", "On which machine", "h100-sxm-80gb", &machines)?;
    let one_node = args.chips.is_none() && args.slice.is_none();
    let nodes = args.nodes.or(one_node.then_some(1)).filter(|_| !topology.starts_with("tpu"));
    let fresh = Fresh {
        runtime,
        model,
        topology,
        nodes,
        chips: args.chips,
        slice: args.slice.clone(),
        sequence: args.sequence,
        micro: args.micro,
    };
    let file = args.out.as_ref().map_or_else(|| "a new scenario".to_owned(), |path| path.display().to_string());
    let (text, scenario) = fresh.text(&file).map_err(Failure::input)?;
    let memory = predict(&scenario, Settings::default()).map_err(Failure::input)?.memory;
    if memory.refused() {
        let fits = memory.remedies.first().map(|remedy| format!("it would with {}", remedy.change));
        let next = || "no change that was tried makes it fit, and windtunnel plan searches larger machines".to_owned();
        files::note(&format!("note: the plan does not fit in memory: {}", fits.unwrap_or_else(next)));
    }
    write(out, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a scenario to a file, or prints it.
fn write(out: Option<Output>, text: &str) -> Result<(), Failure> {
    let Some(file) = out else { return print(text) };
    let hint = format!(": windtunnel run {}", file.path().display());
    let mut written = Written::default();
    written.write(file, text, &hint);
    written.report("")
}

/// A sample as a file of its own: without the schema that lies beside those of the checkout.
fn sample(name: &str) -> Result<String, Failure> {
    let Some(sample) = samples::sample(name) else {
        let near = did_you_mean(name, SAMPLES.iter().map(|sample| sample.name));
        return Err(Failure::input(format!("there is no sample {name:?}{near}: windtunnel new --list shows all")));
    };
    Ok(sample.text.lines().filter(|line| !line.starts_with("#:schema ")).map(|line| format!("{line}\n")).collect())
}

/// What an option says; else what somebody at the terminal answers, where an empty line takes the default.
fn answer(
    said: Option<&String>,
    option: &str,
    question: &str,
    default: &str,
    known: &[&str],
) -> Result<String, Failure> {
    if let Some(said) = said {
        return Ok(said.clone());
    }
    if !std::io::stdin().is_terminal() {
        let list = if known.is_empty() { String::new() } else { format!(", one of {}", known.join(", ")) };
        return Err(Failure::input(format!("write {option}{list}: there is nobody to ask")));
    }
    let list = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
    let mut terminal = std::io::stderr();
    let unread = |error: std::io::Error| Failure::input(format!("the answer cannot be read: {error}"));
    write!(terminal, "{question}{list}? [{default}] ").and_then(|()| terminal.flush()).map_err(unread)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(unread)?;
    let line = line.trim();
    Ok(if line.is_empty() { default.to_owned() } else { line.to_owned() })
}
