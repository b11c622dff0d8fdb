//! A program by itself: what XLA's compiler says of it on a slice, and how long it would take, with no scenario.
//!
//! ```text
//! file ─► Source ─► compiler ─► memory, fit, FLOPs, collectives by axis ─► priced by the slice's profile ─► text, JSON, page
//! ```
//!
//! Memory, FLOPs and collectives are the compiler's own. The time is a sum over its instructions, each priced by the profile of the
//! chip: no measured step of the program stands behind it.

mod axes;
mod json;
mod page;
mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::files::{self, Output};
use windtunnel::hardware::Topology;

use super::priced::{self, Priced};
use super::sides::Compiler;
use super::{Arguments, OUT_OF_MEMORY, asked, placed, to_stdout};
use crate::pjrt::cache;
use crate::pjrt::compile::{Setup, Target};
use crate::pjrt::plugins::Plugin;
use crate::pjrt::slice::Slice;
use crate::pjrt::source::Source;
use crate::xla::Failure;
use axes::{Along, Which};

/// What is known of a program on a slice.
struct Found {
    /// The program's file.
    program: String,
    target: Target,
    slice: Slice,
    topology: Topology,
    /// Names and sizes of its mesh's axes.
    axes: Vec<(String, u32)>,
    compiler: Compiler,
    exchanges: BTreeMap<Which, Along>,
    time: Option<Timed>,
}

/// How long a step takes.
struct Timed {
    priced: Priced,
    /// The least, if all that can run at once does, and the most, if nothing that moves bytes alone does \[s\].
    between: (f64, f64),
    /// Of the chip's peak in 16 bits, what matrix products reach that the compiler shows.
    utilisation: f64,
    /// What takes the step's time, the most first \[s\].
    parts: Vec<(&'static str, f64)>,
}

/// Asks about the program of a file on a slice; gives what is printed, and the exit code.
///
/// # Errors
/// Arguments, files, a plugin that is missing, a program that the compiler refuses.
pub fn answer(arguments: &Arguments, program: &Path, slice: &Slice) -> Result<(String, u8), Failure> {
    let unwritable = |why: files::WriteError| Failure::Input(why.to_string());
    let open = |path: Option<&Path>| path.map(Output::open).transpose().map_err(unwritable);
    let file = open(arguments.json.as_deref().filter(|_| !to_stdout(arguments)))?;
    let html = open(arguments.html.as_deref())?;
    if arguments.plugin.split('@').next() == Some("cpu") {
        let why = "a processor's compiler says nothing of a slice: leave out --plugin, or leave out --topology";
        return Err(Failure::Input(format!("--plugin {}: {why}", arguments.plugin)));
    }
    let source = Source::read(program).map_err(Failure::Input)?;
    let slice = slice.clone().times(arguments.slices.unwrap_or(1));
    if let Some(said) = source.partitions().filter(|said| *said != slice.ranks()) {
        return Err(Failure::Input(format!(
            "{}: the program is partitioned over {said} devices, and {slice} has {}: name the slice that it was lowered for",
            program.display(),
            slice.ranks()
        )));
    }
    let topology = slice.topology().map_err(Failure::Input)?;
    let profile = Profile::shared(&topology.profile).map_err(|why| Failure::Input(why.to_string()))?;
    let folder = cache::folder().map_err(Failure::Input)?;
    let plugin = Plugin::named(&arguments.plugin, &folder).map_err(Failure::Missing)?;
    let flags = arguments.flags.iter().cloned().collect();
    let target = Target { plugin, slice: Some(slice.clone()), partitions: slice.ranks(), flags };
    let mut setup = Setup::usual(Duration::from_secs(arguments.timeout))?;
    if arguments.no_cache {
        setup.cache = None;
    }
    let kept = if arguments.no_cache { "" } else { ", and the answer is kept" };
    files::note(&format!("compiling for {slice}: a step takes minutes{kept}"));
    let spinner = files::spinner("compiling");
    let compiler = match arguments.memory_only {
        true => placed(&source, &target, &setup),
        false => asked(&source, &target, &setup),
    };
    spinner.finish_and_clear();
    let compiler = compiler?;
    let axes = source.axes();
    let model = CostModel::new(&profile, Regime::Sustained);
    let time = compiler.compiled().map(|compiled| {
        let mesh = axes.iter().map(|(_, size)| *size).filter(|size| *size > 1).collect();
        let priced = priced::alone(&compiled.program, priced::On { topology: &topology, model, mesh });
        timed(priced, compiled.flops.matmul, &topology)
    });
    let each = slice.ranks() / arguments.slices.unwrap_or(1).max(1);
    let exchanges = compiler.compiled().map(|compiled| axes::along(&compiled.collectives, &axes, each));
    let found = Found {
        program: program.display().to_string(),
        target,
        slice,
        topology,
        axes,
        compiler,
        exchanges: exchanges.unwrap_or_default(),
        time,
    };
    let code = if found.compiler.fits() == Some(false) { OUT_OF_MEMORY } else { 0 };
    let json = format!("{:#}\n", json::json(&found));
    if let Some(file) = file {
        file.write(&json).map_err(unwritable)?;
    }
    if let Some(html) = html {
        html.write(&page::page(&found)).map_err(unwritable)?;
    }
    Ok((if to_stdout(arguments) { json } else { text::text(&found) }, code))
}

fn timed(priced: Priced, matmul: u64, topology: &Topology) -> Timed {
    let mut parts = vec![
        ("matrix products", priced.matmul_s),
        ("what memory bounds", priced.memory_s),
        ("kernels written by hand", priced.kernels_s),
        ("waiting for exchanges", priced.waiting_s),
    ];
    parts.retain(|(_, seconds)| *seconds > 0.0);
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    let at_peak = matmul as f64 / topology.chip.peak.bf16.0;
    let units = [priced.matmul_s + priced.kernels_s, priced.memory_s, priced.exchanges_s];
    let least = units.into_iter().fold(0.0, f64::max).min(priced.step_s);
    let between = (least, priced.step_s + priced.half_s);
    Timed { utilisation: if priced.step_s > 0.0 { at_peak / priced.step_s } else { 0.0 }, between, priced, parts }
}

impl Found {
    /// Names with figures: what is held in memory \[B\], the arguments first.
    fn memory(&self) -> Vec<(&'static str, u64)> {
        match &self.compiler {
            Compiler::Fits(compiled) => {
                let memory = &compiled.memory;
                let all = [
                    ("arguments", memory.argument),
                    ("outputs", memory.output),
                    ("  donated: in the place of arguments", memory.alias),
                    ("temporary", memory.temp),
                    ("peak", compiled.peak()),
                    ("host memory, temporary", memory.host_temp),
                    ("host memory, arguments", memory.host_argument),
                ];
                let always = |name: &str| !name.starts_with("host");
                all.into_iter().filter(|(name, bytes)| always(name) || *bytes > 0).collect()
            }
            Compiler::Holds(buffers) => {
                vec![("arguments", buffers.argument), ("peak, at first", buffers.peak), ("with gaps", buffers.total)]
            }
            Compiler::OutOfMemory { needed, limit, .. } => {
                let said = |name, bytes: &Option<u64>| bytes.map(|bytes| (name, bytes));
                [said("needed", needed), said("there is", limit)].into_iter().flatten().collect()
            }
        }
    }

    /// What lies in memory at the peak besides arguments, the largest first: bytes, shape and what made it.
    fn live(&self) -> Vec<(u64, String, String)> {
        const SHOWN: usize = 10;
        let mut all: Vec<(u64, String, String)> = self
            .compiler
            .account()
            .into_iter()
            .flat_map(|account| &account.live)
            .map(|live| (live.bytes, live.shape.clone(), live.operator.clone().unwrap_or_else(|| live.from.clone())))
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.0));
        all.truncate(SHOWN);
        all
    }

    /// Whether it fits, and how much is left or missing, in one sentence.
    fn verdict(&self) -> String {
        let gib = |bytes: u64| format!("{:.2} GiB", windtunnel::Bytes(bytes).gib());
        let capacity = self.capacity();
        match &self.compiler {
            Compiler::Fits(compiled) => {
                let peak = compiled.peak();
                format!("It fits: {} of {} at the peak of each device.", gib(peak), gib(capacity))
            }
            Compiler::Holds(buffers) => format!(
                "At first the compiler holds {} of {} on each device; whether it fits was not asked.",
                gib(buffers.peak),
                gib(capacity)
            ),
            Compiler::OutOfMemory { needed: Some(needed), limit, .. } => {
                format!("It does not fit: it needs {} of {}.", gib(*needed), gib(limit.unwrap_or(capacity)))
            }
            Compiler::OutOfMemory { .. } => format!("It does not fit into {}.", gib(capacity)),
        }
    }

    /// What a reader should know before trusting the figures.
    fn remarks(&self) -> Vec<String> {
        let mut all = vec![];
        if let Compiler::Fits(compiled) = &self.compiler {
            let memory = &compiled.memory;
            // A step's outputs are its state again, and a few metrics.
            if memory.alias == 0 && memory.output > memory.argument / 2 && memory.output > 0 {
                all.push(format!(
                    "no argument is donated: {} B of outputs lie beside the arguments (`jax.jit(step, donate_argnums=…)`)",
                    text::thousands(memory.output)
                ));
            }
            if compiled.again.times > 0 {
                all.push(format!(
                    "short of memory the compiler computes {} results again in a step, {} B in all",
                    compiled.again.times,
                    text::thousands(compiled.again.bytes)
                ));
            }
            for unbounded in &compiled.flops.unbounded {
                all.push(format!("counted once: the loop {unbounded}, whose turns are not known"));
            }
        }
        let Some(Timed { priced, .. }) = &self.time else { return all };
        for (call, times) in &priced.unsaid {
            all.push(format!(
                "{times} calls of {call} say nothing of what they compute (Pallas: `cost_estimate`): they are taken to move what they are \
                 given and give, and the step takes at least what is said"
            ));
        }
        for (call, times) in &priced.unpriced {
            all.push(format!(
                "{times} calls of {call}: nothing is known of them, and they are taken to be over at once"
            ));
        }
        all.push(
            "the time is a sum over the compiler's instructions, each priced from the profile, and a first look: the least if what multiplies, \
             what moves bytes and what is exchanged all overlap, the most if what moves bytes overlaps with nothing; no measured step \
             stands behind it"
                .to_owned(),
        );
        if self.axes.is_empty() {
            all.push(
                "the program names no mesh that can be read: collectives are told apart by the devices in a group, and are taken to \
                 lie on the slice as `mesh_utils.create_device_mesh` lays one axis"
                    .to_owned(),
            );
        }
        all
    }

    /// Memory of a device \[B\].
    fn capacity(&self) -> u64 {
        self.topology.chip.memory.0
    }

    /// The compiler's words where it does not fit.
    fn refusal(&self) -> Option<&str> {
        match &self.compiler {
            Compiler::OutOfMemory { message, .. } => Some(message.lines().next().unwrap_or_default()),
            Compiler::Fits(_) | Compiler::Holds(_) => None,
        }
    }

    /// What it needs where it does not fit \[B\].
    fn needed(&self) -> Option<u64> {
        match &self.compiler {
            Compiler::OutOfMemory { needed, .. } => *needed,
            Compiler::Fits(_) | Compiler::Holds(_) => None,
        }
    }

    /// Whether the time is a bound from below.
    fn at_least(&self) -> bool {
        self.time.as_ref().is_some_and(|time| !time.priced.unsaid.is_empty() || !time.priced.unpriced.is_empty())
    }

    /// The mesh, in words.
    fn mesh(&self) -> Option<String> {
        let axis = |(name, size): &(String, u32)| format!("{name} {size}");
        (!self.axes.is_empty()).then(|| self.axes.iter().map(axis).collect::<Vec<_>>().join(" x "))
    }
}
