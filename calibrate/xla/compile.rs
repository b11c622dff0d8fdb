//! `calibrate xla compile`: one program, one slice, what the compiler made of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use windtunnel::files::{Output, WriteError};

use crate::pjrt::cache;
use crate::pjrt::compile::{CompileError, Compiled, Setup, Target, compile};
use crate::pjrt::hlo::print;
use crate::pjrt::plugins::Plugin;
use crate::pjrt::slice::Slice;
use crate::pjrt::source::Source;

use super::error::Failure;

/// Arguments of `calibrate xla compile`.
#[derive(Debug, Args)]
#[command(after_help = crate::cli::help::XLA)]
pub struct Arguments {
    /// A program in StableHLO (text or bytecode) or as an HloModuleProto, as JAX and torch_xla write it.
    program: PathBuf,
    /// The slice to compile for, as v6e:4x4; left out, the devices that the plugin finds here.
    #[arg(long)]
    topology: Option<Slice>,
    /// The compiler: tpu, cpu, tpu@VERSION, or the file of a plugin.
    #[arg(long, default_value = "tpu")]
    plugin: String,
    /// Devices that the program is partitioned over, where it does not say; a slice's chips otherwise, else one.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: Option<u32>,
    /// A flag of the compiler, as xla_tpu_enable_async_collective_fusion=true; may be repeated.
    #[arg(long = "flag", value_parser = flag)]
    flags: Vec<(String, String)>,
    /// Seconds that it may take.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// Compile again, whatever was compiled before, and keep nothing.
    #[arg(long)]
    no_cache: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Write the compiled program to a file, as text.
    #[arg(long)]
    hlo: Option<PathBuf>,
}

/// `NAME=VALUE`, with dashes before it or without.
pub fn flag(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write a flag as NAME=VALUE")?;
    if text.contains(char::is_whitespace) {
        return Err("a flag is one word, NAME=VALUE; write --flag again for another".to_owned());
    }
    Ok((name.trim_start_matches('-').to_owned(), value.to_owned()))
}

/// Runs the command.
pub fn compiled(arguments: &Arguments) -> Result<String, Failure> {
    Ok(asked(arguments)?)
}

fn asked(arguments: &Arguments) -> Result<String, CompileError> {
    let unwritable = |why: WriteError| CompileError::Input(why.to_string());
    let hlo = arguments.hlo.as_deref().map(Output::open).transpose().map_err(unwritable)?;
    let program = Source::read(&arguments.program).map_err(CompileError::Input)?;
    let cache = cache::folder().map_err(CompileError::Input)?;
    let target = Target {
        plugin: Plugin::named(&arguments.plugin, &cache).map_err(CompileError::Unusable)?,
        slice: arguments.topology.clone(),
        partitions: partitions(arguments, &program)?,
        flags: arguments.flags.iter().cloned().collect(),
    };
    let mut setup = Setup::usual(Duration::from_secs(arguments.timeout))?;
    if arguments.no_cache {
        setup.cache = None;
    }
    let compiled = compile(&program, &target, &setup)?;
    if let Some(file) = hlo {
        file.write(&print::text(&compiled.program)).map_err(unwritable)?;
    }
    Ok(if arguments.json {
        serde_json::to_string(&compiled).expect("a report has no keys but strings") + "\n"
    } else {
        text(&compiled)
    })
}

/// As the program says itself (`mhlo.num_partitions`), as asked for, as the slice has chips, or one.
fn partitions(arguments: &Arguments, program: &Source) -> Result<u32, CompileError> {
    match (program.partitions(), arguments.partitions) {
        (Some(said), Some(asked)) if said != asked => {
            Err(CompileError::Input(format!("--partitions is {asked}, but the program says that it is for {said}")))
        }
        (Some(known), _) | (None, Some(known)) => Ok(known),
        (None, None) => Ok(arguments.topology.as_ref().map_or(1, Slice::ranks)),
    }
}

fn text(compiled: &Compiled) -> String {
    let memory = &compiled.memory;
    let mut text = format!(
        "{}, {:.1} s{}\n",
        compiled.plugin,
        compiled.compile_seconds,
        if compiled.cached { " when it was compiled" } else { "" }
    );
    text += "memory of a device [B]\n";
    for (name, bytes) in [
        ("argument", memory.argument),
        ("output", memory.output),
        ("alias", memory.alias),
        ("temp", memory.temp),
        ("peak", memory.peak),
        ("code", memory.generated_code),
        ("host temp", memory.host_temp),
    ] {
        text += &format!("  {name:10} {bytes:>16}\n");
    }
    text += &format!("matrix products [FLOP]  {}\n", compiled.flops.matmul);
    for (target, count) in &compiled.flops.unseen {
        text += &format!("  not seen into: {count} x {target}\n");
    }
    for unbounded in &compiled.flops.unbounded {
        text += &format!("  counted once: the loop {unbounded}, whose turns are not known\n");
    }
    if let Some(cycles) = compiled.estimated_cycles {
        text += &format!("the compiler's estimate [cycles]  {cycles}\n");
    }
    text += "collectives\n";
    for one in &compiled.collectives {
        let (groups, size) = (one.groups.len(), one.groups.first().map_or(0, Vec::len));
        let beside = if one.asynchronous { ", asynchronous" } else { "" };
        let count = one.count;
        text += &format!("  {count:>6} x {:20} {:>14} B, {groups} groups of {size}{beside}\n", one.kind, one.bytes);
    }
    text
}
