//! `calibrate xla`: measures on a device, or asks the compiler about one that is not here.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use windtunnel::files;

use crate::interrupt::Stop;
use crate::journal::Journal;
use crate::pjrt::cache;
use crate::pjrt::compile::Setup;
use crate::pjrt::ffi::{self, Client};
use crate::pjrt::plugins::{Kind, Plugin};
use crate::pjrt::slice::Slice;
use crate::points::{Regime, What};

use super::check::check;
use super::error::Failure;
use super::estimate::Asked;
use super::execute::{Ready, machine, point};
use super::jobs::{KINDS, Scale, jobs};
use super::programs::program;

/// Arguments of `calibrate xla` itself.
#[derive(Debug, Args)]
pub struct Measured {
    /// The slice to compile for, as v6e:4x4, where there is none; left out, the plugin's devices are measured.
    #[arg(long)]
    topology: Option<Slice>,
    /// Whose devices, or whose compiler: tpu, cpu, tpu@VERSION, or the file of a plugin.
    #[arg(long, default_value = "tpu")]
    plugin: String,
    /// Devices that a CPU is taken for.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    devices: u32,
    /// Compare what the devices compute with what the host does, and measure nothing.
    #[arg(long, conflicts_with = "topology")]
    check: bool,
    /// How long to measure or compile; one thing is done at least.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Which kinds of things; all if not named.
    #[arg(long, value_delimiter = ',')]
    kernels: Vec<String>,
    /// The file of points; an existing one is gone on with.
    #[arg(long, default_value = "points-xla.jsonl")]
    out: PathBuf,
}

/// Runs the command.
pub fn measure(arguments: &Measured) -> Result<String, Failure> {
    if !(arguments.minutes > 0.0 && arguments.minutes <= 10_000.0) {
        return Err(Failure::Input("more than 0 and at most 10000 minutes are possible".to_owned()));
    }
    if let Some(unknown) = arguments.kernels.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(Failure::Input(format!("no kernels are called {unknown:?}: there are {}", KINDS.join(", "))));
    }
    if !arguments.check {
        Journal::try_out(&arguments.out)?;
    }
    let end = Instant::now() + Duration::from_secs_f64(60.0 * arguments.minutes);
    let stop = Stop::listen(end).map_err(|why| Failure::Input(format!("cannot listen for an interrupt: {why}")))?;
    let cache = cache::folder().map_err(Failure::Input)?;
    let plugin = Plugin::named(&arguments.plugin, &cache).map_err(Failure::Missing)?;
    match &arguments.topology {
        Some(slice) => ask(
            arguments,
            Asked { plugin, slice: slice.clone(), setup: Setup::usual(Duration::from_secs(600))? },
            &stop,
        ),
        None => run(arguments, &plugin, &stop),
    }
}

/// All jobs of the kinds that were named.
fn planned(arguments: &Measured, scale: Scale, devices: u64) -> Vec<What> {
    let named = |kind: &&&str| arguments.kernels.is_empty() || arguments.kernels.iter().any(|name| name == **kind);
    KINDS.iter().filter(named).flat_map(|kind| jobs(kind, scale, devices)).collect()
}

fn ask(arguments: &Measured, asked: Asked, stop: &Stop) -> Result<String, Failure> {
    let mut journal = Journal::open(&arguments.out, &asked.machine())?;
    let all = planned(arguments, Scale::Chip, u64::from(asked.slice.ranks()));
    let name = |what: &What| match what {
        What::Collective { .. } => asked.slice.name(),
        _ => asked.slice.single().name(),
    };
    let open: Vec<&What> = all.iter().filter(|what| !journal.compiled(what, &name(what))).collect();
    let mut told = Tally { known: all.len() - open.len(), ..Tally::default() };
    let bar = bar(open.len(), "compiling");
    for (at, what) in open.iter().enumerate() {
        if stop.asked() {
            return Err(Failure::Interrupted);
        }
        if at > 0 && stop.late() {
            told.left = open.len() - at;
            break;
        }
        told.count(asked.ask(what, &mut journal)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(told.text("compiled, not run", &arguments.out))
}

fn run(arguments: &Measured, plugin: &Plugin, stop: &Stop) -> Result<String, Failure> {
    if let Some(why) = plugin.no_device() {
        return Err(Failure::Missing(why.to_owned()));
    }
    let api = ffi::Plugin::load(&plugin.path)?;
    let client = Client::create(api, &plugin.client_settings(arguments.devices))?;
    let machine = machine(&client, &format!("{plugin}, PJRT API {}.{}", api.version().0, api.version().1))?;
    let devices = u64::from(machine.gpus);
    if arguments.check {
        return check(&client, devices);
    }
    let scale = if plugin.kind == Some(Kind::Cpu) { Scale::Small } else { Scale::Chip };
    let mut journal = Journal::open(&arguments.out, &machine)?;
    let all = planned(arguments, scale, devices);
    let open: Vec<&What> = all.iter().filter(|what| !journal.knows(what, Regime::Burst)).collect();
    let mut told = Tally { known: all.len() - open.len(), ..Tally::default() };
    let bar = bar(open.len(), "measuring");
    for (at, what) in open.iter().enumerate() {
        if at > 0 && stop.late() {
            told.left = open.len() - at;
            break;
        }
        told.count(one(&client, what, &mut journal, stop)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(told.text("measured", &arguments.out))
}

/// Measures one thing and writes it down; whether it could be.
fn one(client: &Client, what: &What, journal: &mut Journal, stop: &Stop) -> Result<bool, Failure> {
    // Values matter to a chip's power, and so to its clock: neither zero nor all alike.
    let value = |_: usize, argument: usize, place: usize| ((place * 7 + argument * 3) % 5) as f64 - 2.0;
    let ready = program(what).and_then(|wanted| Ready::load(client, &wanted, value).map_err(|why| why.to_string()));
    let timed = match ready {
        Ok(ready) => ready.time(stop).map_err(|why| why.to_string()),
        Err(why) => Err(why),
    };
    match timed {
        Ok(Some(timing)) => journal.add(point(what, timing)).map(|()| true).map_err(Failure::from),
        Ok(None) => Err(Failure::Interrupted),
        Err(why) => journal.skip(what, Regime::Burst, &why).map(|()| false).map_err(Failure::from),
    }
}

fn bar(length: usize, what: &'static str) -> ProgressBar {
    files::bar(Some(length as u64), "{msg} {bar:40} {pos} of {len}, {eta} left").with_message(what)
}

/// How it went.
#[derive(Debug, Default)]
struct Tally {
    done: usize,
    known: usize,
    skipped: usize,
    left: usize,
}

impl Tally {
    fn count(&mut self, done: bool) {
        if done { self.done += 1 } else { self.skipped += 1 }
    }

    fn text(&self, how: &str, out: &Path) -> String {
        let mut text = format!("{} {how}, into {}\n", self.done, out.display());
        for (count, what) in [
            (self.known, "were in the file already"),
            (self.skipped, "could not be; the file says why"),
            (self.left, "are left for the next time"),
        ] {
            if count > 0 {
                text += &format!("{count} {what}\n");
            }
        }
        text
    }
}
