//! Measures jobs, the most valuable first, until all are done, time is up, or somebody asks to stop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::device::Device;
use super::error::Failure;
use super::nccl;
use super::nvml::Monitor;
use super::sweep::{Prepared, Skip, Sweep};
use super::timer::{Care, Untimed, time};
use crate::interrupt::Stop;
use crate::journal::Journal;
use crate::plan::Job;
use crate::points::{Point, Regime, What, sizes};

/// What measuring needs.
pub struct Session<'d> {
    /// Where.
    pub device: &'d Device,
    /// Who watches the board.
    pub monitor: Option<&'d Monitor>,
    /// Kinds of things to measure.
    pub sweeps: &'d [Box<dyn Sweep>],
    /// Where points go.
    pub journal: &'d mut Journal,
    /// When to stop.
    pub stop: Stop,
    /// How well to time.
    pub uncertainty: f64,
    /// Told what happens.
    pub progress: &'d dyn Progress,
}

/// Is told how measuring goes.
pub trait Progress {
    /// This is measured next, of so many that are left.
    fn next(&self, what: &What, regime: Regime, done: usize, planned: usize);
    /// Something worth a line.
    fn note(&self, line: &str);
}

/// How it went.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Points measured now.
    pub measured: usize,
    /// Jobs that were in the file already.
    pub known: usize,
    /// Jobs that time did not suffice for.
    pub left: usize,
    /// The best bus bandwidth of each collective and number of ranks \[B/s\].
    pub buses: BTreeMap<(&'static str, u64), f64>,
    /// Jobs that could not be measured, by reason.
    pub skipped: BTreeMap<String, usize>,
    /// Those of them whose results were wrong.
    pub wrong: usize,
}

impl Session<'_> {
    /// Measures `jobs` at burst clocks, and after them `sustained` at sustained clocks. Of the time there is, a quarter is
    /// kept for the second; what it leaves goes to the rest of the first.
    pub fn run(&mut self, jobs: &[Job], sustained: &[Job]) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let end = self.stop.deadline();
        let now = Instant::now();
        let share = if sustained.is_empty() { 0.0 } else { 0.25 };
        let first = self.stop.until(end - end.saturating_duration_since(now).mul_f64(share));
        let left = self.measure(jobs, Regime::Burst, &first, &mut outcome)?;
        let stop = self.stop.clone();
        let hot = sustained.iter().any(|job| !self.journal.knows(&job.what, Regime::Sustained));
        if hot && !stop.late() {
            self.heat(sustained, end.saturating_duration_since(now).mul_f64(0.1))?;
            outcome.left += self.measure(sustained, Regime::Sustained, &stop, &mut outcome)?.len();
        }
        outcome.left += self.measure(&left, Regime::Burst, &stop, &mut outcome)?.len();
        Ok(outcome)
    }

    /// Measures what is not known yet, and gives back what time did not suffice for.
    fn measure(
        &mut self,
        jobs: &[Job],
        regime: Regime,
        stop: &Stop,
        outcome: &mut Outcome,
    ) -> Result<Vec<Job>, Failure> {
        let (known, mut open): (Vec<Job>, Vec<Job>) =
            jobs.iter().cloned().partition(|job| self.journal.knows(&job.what, regime));
        outcome.known += known.len();
        let planned = open.len();
        for at in 0..planned {
            if stop.asked() {
                return Err(interrupted());
            }
            if stop.late() {
                return Ok(open.split_off(at));
            }
            let what = &open[at].what;
            self.progress.next(what, regime, at, planned);
            match self.one(what, regime, stop)? {
                Ok(point) => {
                    if let Some((name, ranks, rate)) = nccl::bus_bandwidth(&point) {
                        let best = outcome.buses.entry((name, ranks)).or_default();
                        *best = best.max(rate);
                    }
                    self.journal.add(point)?;
                    outcome.measured += 1;
                }
                Err(skip) => {
                    self.journal.skip(what, regime, &skip.why)?;
                    outcome.wrong += usize::from(skip.wrong);
                    *outcome.skipped.entry(skip.why).or_default() += 1;
                }
            }
        }
        Ok(vec![])
    }

    /// Measures one thing. The outer error ends the session, the inner one only this job.
    fn one(&self, what: &What, regime: Regime, stop: &Stop) -> Result<Result<Point, Skip>, Failure> {
        let mut thing = match self.prepared(what) {
            Ok(thing) => thing,
            Err(skip) => return self.alive().map(|()| Err(skip)),
        };
        let care = Care::of(regime, self.uncertainty);
        match time(self.device, thing.as_mut(), regime, care, self.monitor, stop) {
            Ok(timing) if timing.summary.p10 > 0.0 => Ok(Ok(Point {
                what: what.clone(),
                regime,
                median: round(timing.summary.median),
                p10: round(timing.summary.p10),
                p90: round(timing.summary.p90),
                repeats: timing.samples,
                outliers: timing.summary.outliers,
                board: timing.board,
                algorithm: thing.algorithm(),
            })),
            Ok(_) => Ok(Err(Skip::because("the clock did not tick while it ran"))),
            Err(Untimed::Stopped) => Err(interrupted()),
            Err(Untimed::Failed(error)) => self.alive().map(|()| Err(error.into())),
        }
    }

    fn prepared(&self, what: &What) -> Result<Box<dyn Prepared + '_>, Skip> {
        sizes::check(what).map_err(Skip::because)?;
        let sweep = self.sweeps.iter().find(|sweep| sweep.measures(what));
        sweep.ok_or_else(|| Skip::because("no sweep that runs here measures it"))?.prepare(self.device, what)
    }

    /// A kernel that failed may have taken the context with it; then nothing more can be measured.
    fn alive(&self) -> Result<(), Failure> {
        self.device.synchronize().map_err(|error| Failure::Device(format!("the device gave up: {error}")))
    }

    /// Keeps the device busy with the most valuable of `jobs` for `time`, so that the board reaches the power and the
    /// temperature that it has in the middle of a training run.
    fn heat(&self, jobs: &[Job], time: Duration) -> Result<(), Failure> {
        let time = time
            .clamp(Duration::from_secs(5), Duration::from_secs(120))
            .min(self.stop.deadline().saturating_duration_since(Instant::now()) / 2);
        self.progress.note(&format!("heating up for {:.0} s", time.as_secs_f64()));
        let Some(mut thing) = jobs.iter().find_map(|job| self.prepared(&job.what).ok()) else { return Ok(()) };
        let (began, mut turn) = (Instant::now(), 0);
        while began.elapsed() < time && !self.stop.asked() {
            for _ in 0..16 {
                thing.launch(turn)?;
                turn += 1;
            }
            self.device.synchronize()?;
        }
        if let Some((limit, board)) = self.monitor.and_then(|monitor| Some((monitor.power_limit()?, monitor.read()?))) {
            let held =
                if board.power < 0.9 * limit { "so its limit is not what holds the clocks" } else { "at its limit" };
            let (power, clock) = (board.power, board.clock);
            self.progress.note(&format!("the board draws {power:.0} W of {limit:.0} W at {clock:.0} MHz, {held}"));
        }
        Ok(())
    }
}

fn interrupted() -> Failure {
    Failure::Interrupted(
        "interrupted; what was measured is in the file, and the same command goes on from there".to_owned(),
    )
}

/// Four digits after the point: a tenth of a nanosecond.
fn round(us: f64) -> f64 {
    (us * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use crate::points::Machine;

    #[test]
    fn what_a_sweep_plans_it_measures_and_no_other_does() {
        let machine = Machine { gpus: 2, ..Machine::example() };
        let sweeps = crate::cuda::sweeps();
        for sweep in &sweeps {
            for job in sweep.plan(&machine) {
                let who: Vec<_> =
                    sweeps.iter().filter(|sweep| sweep.measures(&job.what)).map(|other| other.name()).collect();
                assert_eq!(who, [sweep.name()], "{:?}", job.what);
                assert!(job.value > 0.0 && job.value < 0.1, "{job:?}");
            }
        }
    }
}
