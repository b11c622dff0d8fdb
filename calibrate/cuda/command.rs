//! The command: arguments, the order of things, what is printed.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;

use super::device::{Device, Facts};
use super::error::Failure;
use super::library::Libraries;
use super::nvml::Monitor;
use super::session::{Outcome, Progress, Session};
use super::sweep::Sweep;
use super::{list, machine, open};
use windtunnel::files;

use crate::interrupt::Stop;
use crate::journal::Journal;
use crate::plan::{Job, ranked};
use crate::points::{Machine, Regime, What, sizes};

/// Arguments of `calibrate cuda`.
#[derive(Debug, Args)]
#[command(after_help = crate::cli::help::CUDA)]
pub struct Arguments {
    /// Say what this machine can measure and which libraries are missing, and measure nothing.
    #[arg(long)]
    list: bool,
    /// Compare results of the measured kernels with what the host computes, and measure nothing.
    #[arg(long, conflicts_with = "list")]
    check: bool,
    /// How long to measure; the most valuable points come first.
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Which sweeps; all that can run here if not named.
    #[arg(long, value_delimiter = ',')]
    sweeps: Vec<String>,
    /// The file of points; an existing one is gone on with.
    #[arg(long, default_value = "points.jsonl")]
    out: PathBuf,
    /// More to measure, as `calibrate plan --json` prints it: an object `{"what": …, "value": …}` a line, the value being the
    /// share of a training step that rests on it.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Which device, as the driver numbers them.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Folders to look for libraries in, before all others: a CUDA installation, or Python's `site-packages`.
    #[arg(long, value_delimiter = ',')]
    libraries: Vec<PathBuf>,
    /// Measure although others use the device.
    #[arg(long)]
    busy_ok: bool,
    /// Leave out measurements at sustained clocks.
    #[arg(long)]
    burst_only: bool,
    /// When a median is certain enough: half its 95 % confidence interval, over itself.
    #[arg(long, default_value_t = 0.005, value_parser = share)]
    uncertainty: f64,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number of minutes".to_owned())?;
    let fits = minutes > 0.0 && minutes <= 10_000.0;
    fits.then_some(minutes).ok_or_else(|| "more than 0 and at most 10000 minutes are possible".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    (share > 0.0 && share < 1.0).then_some(share).ok_or_else(|| "between 0 and 1".to_owned())
}

/// Jobs that are repeated at sustained clocks, at most: a run of matrix multiplications and attention lives there.
const SUSTAINED: usize = 400;

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = if arguments.list { list::list(&arguments.libraries) } else { measure(arguments) };
    match done {
        Ok(report) => crate::cli::said(&report, 0),
        Err(failure) => {
            files::complain(&format!("error: {failure}"));
            failure.exit()
        }
    }
}

fn measure(arguments: &Arguments) -> Result<String, Failure> {
    if !arguments.check {
        Journal::try_out(&arguments.out)?;
    }
    let end = Instant::now() + Duration::from_secs_f64(60.0 * arguments.minutes);
    let named = named(&arguments.sweeps)?;
    let more = arguments.plan.as_deref().map_or(Ok(vec![]), jobs)?;
    let libraries = Libraries::look(&arguments.libraries).map_err(Failure::Input)?;
    let facts = open::chosen(arguments.device, open::driver(&libraries)?)?;
    let mut sweeps = able(named, !arguments.sweeps.is_empty(), &libraries)?;
    let monitor = Monitor::open(&libraries, &facts.bus);
    let bar = Bar::new();
    if let Err(why) = &monitor {
        bar.note(&format!("no power, clocks or temperature beside the points, and no look at who else is here: {why}"));
    }
    let monitor = monitor.ok();
    let others = open::others(arguments.device, monitor.as_ref(), arguments.busy_ok)?;
    if let Some(others) = &others {
        bar.note(&format!("the device is shared: {others}; the points say so, and `calibrate fit` leaves them out"));
    }
    let machine = machine::machine(&facts, &libraries, monitor.as_ref(), others);
    for why in sweeps.iter().filter_map(|sweep| sweep.lacks(&machine)) {
        match arguments.sweeps.is_empty() {
            true => bar.note(&why),
            false => return Err(Failure::NoDevice(why)),
        }
    }
    sweeps.retain(|sweep| sweep.lacks(&machine).is_none());
    let planned = plan(&sweeps, &machine, more);
    let stop = Stop::listen(end).map_err(|why| Failure::Input(format!("cannot listen for an interrupt: {why}")))?;
    let device = open::device(arguments.device)?;
    if arguments.check {
        return check(&sweeps, &device);
    }
    let mut journal = Journal::open(&arguments.out, &machine)?;
    let heavy =
        |job: &&Job| matches!(job.what, What::Matmul { .. } | What::GroupedMatmul { .. } | What::Attention { .. });
    let sustained: Vec<Job> = match arguments.burst_only {
        true => vec![],
        false => planned.iter().filter(heavy).take(SUSTAINED).cloned().collect(),
    };
    let monitor = monitor.as_ref();
    let uncertainty = arguments.uncertainty;
    let mut session =
        Session { device: &device, monitor, sweeps: &sweeps, journal: &mut journal, stop, uncertainty, progress: &bar };
    let outcome = session.run(&planned, &sustained);
    bar.bar.finish_and_clear();
    let outcome = outcome?;
    let report = report(&outcome, &facts, &arguments.out, journal.len());
    if outcome.wrong == 0 {
        return Ok(report);
    }
    // What was wrong is said whether or not this is.
    let _ = files::print(&report);
    Err(Failure::Wrong(format!(
        "results were wrong {} time(s), as said above; nothing of that was timed",
        outcome.wrong
    )))
}

/// Compares what can be compared.
fn check(sweeps: &[Box<dyn Sweep>], device: &Device) -> Result<String, Failure> {
    let mut text = String::new();
    for sweep in sweeps {
        match sweep.check(device) {
            Ok(Some(agreed)) => text += &format!("{}: {agreed}\n", sweep.name()),
            Ok(None) => {}
            Err(skip) => return Err(Failure::Device(format!("{}: {}", sweep.name(), skip.why))),
        }
    }
    Ok(text)
}

/// The sweeps that were asked for; all if none was named.
fn named(names: &[String]) -> Result<Vec<Box<dyn Sweep>>, Failure> {
    let mut sweeps = super::sweeps();
    if let Some(unknown) = names.iter().find(|name| !sweeps.iter().any(|sweep| sweep.name() == **name)) {
        let known: Vec<&str> = sweeps.iter().map(|sweep| sweep.name()).collect();
        return Err(Failure::Input(format!("there is no sweep {unknown:?}: there are {}", known.join(", "))));
    }
    sweeps.retain(|sweep| names.is_empty() || names.iter().any(|name| name == sweep.name()));
    Ok(sweeps)
}

/// Those of them that can run here. One that was asked for by name and cannot is an error; others are left out.
fn able(sweeps: Vec<Box<dyn Sweep>>, asked: bool, libraries: &Libraries) -> Result<Vec<Box<dyn Sweep>>, Failure> {
    let mut able = vec![];
    let mut first = None;
    for sweep in sweeps {
        match list::obstacle(sweep.as_ref(), libraries) {
            None => able.push(sweep),
            Some(failure) if asked => return Err(failure),
            Some(failure) => first = first.or(Some(failure)),
        }
    }
    match first {
        Some(failure) if able.is_empty() => Err(failure),
        _ => Ok(able),
    }
}

/// What to measure, most valuable first. Values of a file and of sweeps are on one scale, shares of a training step; what
/// both name is worth their sum.
fn plan(sweeps: &[Box<dyn Sweep>], machine: &Machine, mut jobs: Vec<Job>) -> Vec<Job> {
    jobs.extend(sweeps.iter().flat_map(|sweep| sweep.plan(machine)));
    ranked(jobs)
}

/// Reads a file for `--plan`.
fn jobs(path: &Path) -> Result<Vec<Job>, Failure> {
    let name = path.display();
    let text = windtunnel::files::text(path).map_err(|why| Failure::Input(format!("{name}: {why}")))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let job = |(at, line): (usize, &str)| {
        let bad = |why: String| Failure::Input(format!("{name}:{}: {why}", at + 1));
        let job: Job = serde_json::from_str(line).map_err(|why| bad(why.to_string()))?;
        sizes::check(&job.what).map_err(bad)?;
        Ok(job)
    };
    lines.map(job).collect()
}

fn report(outcome: &Outcome, facts: &Facts, out: &Path, points: usize) -> String {
    let mut text = format!("{}: {} new points", facts.name, outcome.measured);
    if outcome.known > 0 {
        text += &format!(", {} were known", outcome.known);
    }
    text += &format!("; {} holds {points}\n", out.display());
    for ((name, ranks), best) in &outcome.buses {
        text += &format!("{name} over {ranks} GPUs: at best {:.1} GB/s on the bus\n", best / 1e9);
    }
    for (why, count) in &outcome.skipped {
        text += &format!("left out {count}: {why}\n");
    }
    if outcome.left > 0 {
        text += &format!("{} are still to be measured: the same command goes on with them\n", outcome.left);
    }
    text
}

/// A bar on the terminal; without one, a line now and then.
struct Bar {
    bar: ProgressBar,
    said: Cell<Instant>,
}

/// How often a line says how it goes, where there is no terminal.
const NOW_AND_THEN: Duration = Duration::from_secs(30);

impl Bar {
    fn new() -> Self {
        let bar = files::bar(Some(0), "{elapsed_precise} {bar:30} {pos}/{len}, {eta} left {wide_msg}");
        Self { bar, said: Cell::new(Instant::now()) }
    }
}

impl Progress for Bar {
    fn next(&self, what: &What, regime: Regime, done: usize, planned: usize) {
        self.bar.set_length(planned as u64);
        self.bar.set_position(done as u64);
        let name = serde_json::to_string(what).unwrap_or_default().replace(['"', '{', '}'], "").replace(':', " ");
        let hot = if regime == Regime::Sustained { "hot " } else { "" };
        if self.bar.is_hidden() && self.said.get().elapsed() > NOW_AND_THEN {
            files::note(&format!("{done} of {planned}: {hot}{name}"));
            self.said.set(Instant::now());
        }
        self.bar.set_message(format!("{hot}{name}"));
    }

    fn note(&self, line: &str) {
        self.bar.suspend(|| files::note(line));
    }
}
