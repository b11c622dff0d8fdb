//! `compile-check`: a scenario's training step as XLA's compiler makes it, beside what is predicted.
//!
//! Without a scenario [`alone`] says what a program of a file does by itself.
//!
//! `step` writes the program, or a file has it; `pjrt` compiles it for the scenario's slice with the scenario's flags;
//! `sides` reads both answers off as the same figures, `verdict` says how far they may be apart, `report` prints them.

mod alone;
mod priced;
mod report;
mod sides;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use windtunnel::files::{self, Output};
use windtunnel::runtime::{Parts, spmd};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

use crate::pjrt::cache;
use crate::pjrt::compile::{CompileError, Setup, Target, buffers, compile};
use crate::pjrt::plugins::{Kind, Plugin};
use crate::pjrt::slice::Slice;
use crate::pjrt::source::Source;
use crate::step;
use crate::xla::Failure;

use sides::{Compiler, Ours};
use verdict::Comparable;

/// Arguments of `compile-check`.
#[derive(Debug, Args)]
#[command(after_help = crate::cli::help::COMPILE_CHECK)]
pub struct Arguments {
    /// The scenario file, with runtime = "xla"; left out with --program and --topology.
    #[arg(required_unless_present = "topology")]
    scenario: Option<PathBuf>,
    /// Compile this program in place of the step that is written from the scenario: StableHLO (text or bytecode) or an
    /// HloModuleProto, as JAX and torch_xla write them.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The slice to compile the program for, as v6e:4x4, where there is no scenario.
    #[arg(long, value_name = "SLICE", requires = "program", conflicts_with_all = ["scenario", "sequence", "emit"])]
    topology: Option<Slice>,
    /// How many such slices, with a network between them.
    #[arg(long, value_name = "COUNT", requires = "topology", value_parser = clap::value_parser!(u32).range(1..))]
    slices: Option<u32>,
    /// Write the answer as a page to this file, where there is no scenario.
    #[arg(long, value_name = "FILE", requires = "topology")]
    html: Option<PathBuf>,
    /// Tokens of a sequence, instead of the file's.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(i64).range(1..))]
    sequence: Option<i64>,
    /// The compiler: tpu, tpu@VERSION, the file of a plugin, or cpu, which compiles for this machine's processors.
    #[arg(long, default_value = "tpu")]
    plugin: String,
    /// A flag of the compiler besides the scenario's, as xla_tpu_scoped_vmem_limit_kib=98304; may be repeated.
    #[arg(long = "flag", value_name = "NAME=VALUE", value_parser = crate::xla::flag)]
    flags: Vec<(String, String)>,
    /// Seconds that compiling may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
    /// Ask only where the compiler puts buffers at first, and what is live at the peak there; it is ended then, in half the time. A
    /// hint and no verdict: short of memory it starts over. No FLOPs and no collectives.
    #[arg(long)]
    memory_only: bool,
    /// Compile again, whatever was compiled before, and keep nothing.
    #[arg(long)]
    no_cache: bool,
    /// Write the answer as JSON to this file (`-`: standard output, instead of the report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the step that is written from the scenario to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    emit: Option<PathBuf>,
}

/// Exit code of a prediction that is further from the compiler than it may be.
const APART: u8 = 9;
/// Exit code of a step that does not fit, as predicted.
const OUT_OF_MEMORY: u8 = 8;

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let answered = match (&arguments.program, &arguments.topology, &arguments.scenario) {
        (Some(program), Some(slice), _) => alone::answer(arguments, program, slice),
        (_, _, Some(scenario)) => answer(arguments, scenario),
        _ => Err(Failure::Input(
            "name a scenario, or a program and a slice (--program FILE --topology v6e:4x4)".to_owned(),
        )),
    };
    match answered {
        Ok((text, code)) if to_stdout(arguments) => crate::cli::said_json(&text, code),
        Ok((text, code)) => crate::cli::said(&text, code),
        Err(failure) => crate::cli::failed(&failure, failure.code()),
    }
}

/// Whether JSON is printed in the report's stead.
fn to_stdout(arguments: &Arguments) -> bool {
    arguments.json.as_deref() == Some(Path::new("-"))
}

/// What was compiled, by what and how.
pub struct Question {
    scenario: Scenario,
    /// Of the program: `emitted`, or a file.
    program: String,
    target: Target,
    /// Flags of the scenario that this version of the compiler does not have.
    dropped: Vec<String>,
    /// Flags of the scenario that it refuses as they are, as it asks for them.
    set: Vec<String>,
    /// Whether the kernels in it are stand-ins.
    stand_ins: bool,
}

/// The time of the compiled program beside that of the scenario's own, without waiting for a host.
struct Timed {
    priced: priced::Priced,
    predicted_s: f64,
}

fn answer(arguments: &Arguments, file_of: &Path) -> Result<(String, u8), Failure> {
    let unwritable = |why: files::WriteError| Failure::Input(why.to_string());
    let file = arguments.json.as_ref().filter(|_| !to_stdout(arguments));
    let file = file.map(|path| Output::open(path)).transpose().map_err(unwritable)?;
    let emit = arguments.emit.as_deref().map(Output::open).transpose().map_err(unwritable)?;
    let scenario = read(file_of, arguments.sequence)?;
    let Parts::Compiled(job) = scenario.job.parts() else {
        let runtime = scenario.runtime.written();
        let why = "compile-check asks XLA's compiler, which compiles scenarios with runtime = \"xla\"";
        return Err(Failure::Input(format!("{}: runtime is {runtime:?}: {why}", file_of.display())));
    };
    let cpu = arguments.plugin.split('@').next() == Some("cpu");
    if arguments.memory_only && cpu {
        let why = "a processor's memory says nothing of a chip's: leave out --memory-only, or leave --plugin at tpu";
        return Err(Failure::Input(format!("--plugin {}: {why}", arguments.plugin)));
    }
    let program = match &arguments.program {
        Some(path) => exported(path, job)?,
        None => written(emit, &scenario, job, cpu)?,
    };
    let folder = cache::folder().map_err(Failure::Input)?;
    let plugin = Plugin::named(&arguments.plugin, &folder).map_err(Failure::Missing)?;
    let mut flags = if cpu { Default::default() } else { job.compiler_flags.clone() };
    flags.extend(arguments.flags.iter().cloned());
    let slice = match plugin.kind {
        Some(Kind::Cpu) => None,
        _ => Some(slice(&scenario)?),
    };
    let target = Target { plugin, slice, partitions: job.mesh.ranks(), flags };
    let written = arguments.program.as_ref().map(|path| path.display().to_string());
    let mut question = Question {
        program: written.clone().unwrap_or_else(|| "emitted".to_owned()),
        stand_ins: written.is_none(),
        scenario,
        target,
        dropped: vec![],
        set: vec![],
    };
    let mut setup = Setup::usual(Duration::from_secs(arguments.timeout))?;
    if arguments.no_cache {
        setup.cache = None;
    }
    if question.target.slice.is_some() {
        let takes = if arguments.memory_only { "buffers take a minute or two" } else { "a step takes minutes" };
        files::note(&format!(
            "compiling for {} chips: {takes}{}",
            question.target.partitions,
            if arguments.no_cache { "" } else { ", and the answer is kept" }
        ));
    }
    let settings = Settings { remedies: false, ..Settings::default() };
    let prediction = predict(&question.scenario, settings).map_err(|why| Failure::Input(why.to_string()))?;
    let ours = Ours::of(&prediction);
    let own: Vec<&str> = arguments.flags.iter().map(|(name, _)| name.as_str()).collect();
    let spinner = files::spinner("compiling");
    let compiler = with_its_flags(&mut question, &own, |target| match arguments.memory_only {
        true => placed(&program, target, &setup),
        false => asked(&program, target, &setup),
    });
    spinner.finish_and_clear();
    let compiler = compiler?;
    let sorted = matches!(question.scenario.job.parts(), Parts::Compiled(job) if job.sorts_experts());
    let comparable = Comparable { slice: question.target.slice.is_some(), matmuls: !sorted };
    let (verdict, code) = verdict::verdict(&compiler, &ours, comparable);
    // Another machine's compiler fuses for another machine.
    let of_slice = compiler.compiled().filter(|_| question.target.slice.is_some());
    let program = &prediction.classes[0].program;
    let time = of_slice.map(|compiled| Timed {
        priced: priced::priced(&compiled.program, &question.scenario, program),
        predicted_s: prediction.step.saturating_sub(prediction.classes[0].breakdown.host_bound).seconds(),
    });
    let answers = (&compiler, &ours, time.as_ref());
    let json = format!("{:#}\n", report::json(&question, answers, &verdict));
    if let Some(file) = file {
        file.write(&json).map_err(unwritable)?;
    }
    Ok((if to_stdout(arguments) { json } else { report::text(&question, answers, &verdict) }, code))
}

/// The scenario.
fn read(path: &Path, sequence: Option<i64>) -> Result<Scenario, Failure> {
    let file = path.display().to_string();
    let wrong = |why: &dyn std::fmt::Display| Failure::Input(why.to_string());
    let text = files::text(path).map_err(|why| Failure::Input(format!("{file}: {why}")))?;
    let mut scenario = Scenario::proofread(&file, &text).map_err(|why| wrong(&why))?;
    if let Some(tokens) = sequence {
        scenario.draft.set("batch.sequence", tokens);
        scenario = scenario.draft.scenario().map_err(|why| wrong(&why))?;
    }
    Ok(scenario)
}

/// A program that was exported.
fn exported(path: &Path, job: &spmd::XlaPlan) -> Result<Source, Failure> {
    let program = Source::read(path).map_err(Failure::Input)?;
    match program.partitions() {
        Some(said) if said != job.mesh.ranks() => Err(Failure::Input(format!(
            "{}: the program is partitioned over {said} devices, and the scenario's mesh has {}",
            path.display(),
            job.mesh.ranks()
        ))),
        _ => Ok(program),
    }
}

/// The scenario's step.
fn written(emit: Option<Output>, scenario: &Scenario, job: &spmd::XlaPlan, cpu: bool) -> Result<Source, Failure> {
    if cpu && job.attention != spmd::Attention::DotProduct {
        return Err(Failure::Input(
            "the splash kernel is a TPU's, and the cpu plugin has no compiler for it: write xla.attention = \
             \"dot_product\", or leave --plugin at tpu"
                .to_owned(),
        ));
    }
    let step = step::write(job, step::Options { kernels: !cpu }).map_err(|why| {
        Failure::Input(format!("{}: {why}\nexport the step from JAX and name it by --program", scenario.file))
    })?;
    if let Some(file) = emit {
        file.write(&step.listing()).map_err(|why| Failure::Input(why.to_string()))?;
    }
    Ok(Source::written(step.text))
}

/// The slices that the scenario rents.
fn slice(scenario: &Scenario) -> Result<Slice, Failure> {
    let topology = &scenario.topology;
    Slice::of(topology).ok_or_else(|| Failure::Input(format!("{} is no torus that libtpu compiles for", topology.name)))
}

/// Asks without those flags of the scenario that the compiler does not have, and with those set otherwise that it wants otherwise:
/// flags come and go with its versions, and it names those that it does not take. A flag of the command line is the user's to take
/// back.
fn with_its_flags(
    question: &mut Question,
    own: &[&str],
    ask: impl Fn(&Target) -> Result<Compiler, CompileError>,
) -> Result<Compiler, Failure> {
    loop {
        let refused = match ask(&question.target) {
            Ok(compiler) => return Ok(compiler),
            Err(refused) => refused,
        };
        let flags = &mut question.target.flags;
        let lacks = refused.lacking_options();
        if let Some(name) = lacks.iter().find(|name| own.contains(&name.as_str())) {
            let why = format!(
                "--flag {name}: {} has no such flag: leave it out, or fetch a version that has it \
                 (`windtunnel calibrate plugins list`)",
                question.target.plugin
            );
            return Err(Failure::Input(why));
        }
        let left_out: Vec<String> = lacks.into_iter().filter(|name| flags.remove(name).is_some()).collect();
        if !left_out.is_empty() {
            question.dropped.extend(left_out);
            continue;
        }
        let asks = refused
            .asks_for()
            .filter(|(name, value)| !own.contains(&name.as_str()) && flags.get(name).is_some_and(|now| now != value));
        let Some((name, value)) = asks else { return Err(refused.into()) };
        question.set.push(format!("{name}={value}"));
        flags.insert(name, value);
    }
}

/// A verdict of the compiler's is an answer, too.
fn asked(program: &Source, target: &Target, setup: &Setup) -> Result<Compiler, CompileError> {
    compile(program, target, setup).map(|compiled| Compiler::Fits(Box::new(compiled))).or_else(refusal)
}

/// The same of memory alone.
fn placed(program: &Source, target: &Target, setup: &Setup) -> Result<Compiler, CompileError> {
    buffers(program, target, setup).map(|buffers| Compiler::Holds(Box::new(buffers))).or_else(refusal)
}

/// That a step does not fit is what was asked.
fn refusal(error: CompileError) -> Result<Compiler, CompileError> {
    match error {
        CompileError::OutOfMemory { needed, limit, message, seconds, account } => {
            Ok(Compiler::OutOfMemory { needed, limit, message, seconds, account })
        }
        other => Err(other),
    }
}

#[cfg(test)]
mod tests;
