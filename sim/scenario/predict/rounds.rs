//! Programs, costs and timeline of a job, of all its micro-batches or from runs of a few.
//!
//! A pipeline that is full repeats itself round by round. Where a step has many micro-batches, a few rounds of them are written. If the
//! state of their run comes back after a round, to the picosecond, the missing rounds are that round over again
//! ([`engine::Prepared::run_further`]). Else three short runs are made, of micro-batches that differ by one round each; if the third is
//! what the first two say it should be, so is the step ([`engine::extend`]). If it is not, all micro-batches are run.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::costs::{self, Evidence};
use super::memory::{self, DeviceMemory};
use super::parts::Counts;
use super::settings::Settings;
use crate::cost::CostModel;
use crate::engine::{self, Costs, EngineError, Options, Prepared, Round, Timeline};
use crate::program::Discipline;
use crate::runtime::megatron::CudaGraphs;
use crate::runtime::{Flight, Parts, Plan};
use crate::scenario::error::ScenarioError;
use crate::scenario::length;
use crate::scenario::understood::Scenario;
use crate::schedule::order;
use crate::units::{Bytes, Flops, Time};

/// A job that has been run.
pub(super) struct Flown<T = Timeline> {
    /// Its programs, of all micro-batches or of the longest short run.
    pub(super) flight: Flight,
    /// Evidence of the costs, by class.
    pub(super) evidence: Vec<Evidence>,
    /// How often each part is issued in the whole step, by class.
    pub(super) counts: Vec<Counts>,
    /// The whole step.
    pub(super) timeline: T,
    /// What the hosts pay for a step, by class \[ps\].
    pub(super) host_work: Vec<Time>,
    /// Ranks, by class.
    pub(super) ranks: Vec<Vec<u32>>,
    /// Memory by class, and the class with the least to spare; of a short run that is only compared, or that failed, none.
    pub(super) memory: (Vec<DeviceMemory>, usize),
}

/// Programs that are written, and their memory where it is known.
pub(super) struct Written {
    flight: Flight,
    memory: Memory,
}

/// What is to be said of a run's memory.
enum Memory {
    /// Nothing: the run is only compared.
    Unasked,
    /// All: it is replayed beside the run.
    Replay,
    /// It has been replayed: by class, and the class with the least to spare.
    Known((Vec<DeviceMemory>, usize)),
}

/// Writes a job's programs, to be run with their memory.
fn write(scenario: &Scenario, settings: Settings, job: &Plan) -> Option<Written> {
    let flight = scenario.written(job, scenario.most(settings)).ok()?;
    Some(Written { flight, memory: Memory::Replay })
}

/// Runs a scenario's job.
pub(super) fn fly(scenario: &Scenario, settings: Settings) -> Result<Flown, ScenarioError> {
    fly_written(scenario, settings, None)
}

/// Runs a scenario's job if it fits; whether it does is known before its time is looked for.
pub(super) fn fly_if_it_fits(scenario: &Scenario, settings: Settings) -> Result<Option<Flown>, ScenarioError> {
    let (job, beside) = fewer(&scenario.job);
    let Ok(flight) = scenario.written(&job, scenario.most(settings)) else { return fly(scenario, settings).map(Some) };
    let Some(memory) = memory::if_it_fits(scenario, (&flight, beside)) else { return Ok(None) };
    // Of a compiled step a few inputs are written, which say whether it fits and not how it runs.
    let whole = !matches!(job.parts(), Parts::Compiled(_));
    let known = whole.then_some(Written { flight, memory: Memory::Known(memory) });
    fly_written(scenario, settings, known).map(Some)
}

/// Programs of few micro-batches of a job, with which [`fly_written`] goes on.
pub(super) fn write_few(scenario: &Scenario) -> Option<Flight> {
    scenario.written(&fewer(&scenario.job).0, scenario.most(Settings::default())).ok()
}

/// The same with their memory, if it is known.
pub(super) fn with_memory(flight: Flight, memory: Option<(Vec<DeviceMemory>, usize)>) -> Written {
    Written { flight, memory: memory.map_or(Memory::Replay, Memory::Known) }
}

/// Runs a scenario's job, of which the programs of [`fewer`] may be written.
pub(super) fn fly_written(
    scenario: &Scenario,
    settings: Settings,
    known: Option<Written>,
) -> Result<Flown, ScenarioError> {
    let job = &scenario.job;
    let (Some(short), false) = (short_runs(job), settings.record) else { return all(scenario, settings, known) };
    match extended(scenario, settings, short, known)? {
        Some(flown) => Ok(flown),
        None => all(scenario, settings, None),
    }
}

/// Runs all micro-batches of a job, or some where they are too many to be written.
fn all(scenario: &Scenario, settings: Settings, known: Option<Written>) -> Result<Flown, ScenarioError> {
    let job = &scenario.job;
    let long = scenario.far_too_long(settings);
    if long.is_none()
        && let Some(written) = known.or_else(|| write(scenario, settings, job))
    {
        return run(scenario, written, settings, |job, _| job.run());
    }
    let flown = match (unwritten(job), settings.record) {
        (Some(short), false) => extended(scenario, settings, short, None)?,
        _ => None,
    };
    flown.ok_or_else(|| match long {
        Some(long) => scenario.too_long_by(settings, long),
        None => scenario.too_long(settings),
    })
}

/// Rounds of a step from which on three short runs of it are less work.
const WORTH: u32 = 12;

/// Three short runs of a step, and the whole.
#[derive(Clone, Copy)]
struct Runs {
    /// Rounds of each, and of the step.
    rounds: [u32; 4],
    /// Micro-batches of a round, and those that are in no round.
    each: u32,
    rest: u32,
}

impl Runs {
    /// The job with so many rounds.
    fn job(self, job: &Plan, rounds: u32) -> Option<Plan> {
        job.with_micro_batches(rounds * self.each + self.rest)
    }
}

/// Short runs of a step that is too long to be written. A pipeline that does not repeat itself after two rounds may do so after
/// four.
fn unwritten(job: &Plan) -> Option<Runs> {
    let all = job.micro_batches();
    let each = match job.train() {
        Some(job) => job.pipeline.is_none().then_some(1)?,
        None => repeated(job)?,
    };
    (all / each > 6).then(|| Runs { rounds: [4, 5, 6, all / each], each, rest: all % each })
}

/// Micro-batches after which a pipeline may repeat itself.
fn repeated(job: &Plan) -> Option<u32> {
    // One graph that is the whole step keeps memory for every micro-batch; what a searched schedule repeats is no round.
    if job.megatron().is_some_and(|plan| plan.graphs == CudaGraphs::Iteration) {
        return None;
    }
    match job.parts() {
        Parts::Split(job) => (!job.pipeline.schedule.is_of(&order::SEARCHED)).then_some(job.mesh.pp.max(2)),
        Parts::Whole(job) => Some(job.pipeline.as_ref().map_or(1, |pipeline| pipeline.ranks.max(2))),
        Parts::Compiled(_) => None,
    }
}

/// The short runs; none if they would save little.
fn short_runs(job: &Plan) -> Option<Runs> {
    let (each, all) = (repeated(job)?, job.micro_batches());
    let rounds = all.is_multiple_of(each).then_some(all / each)?;
    let (short, enough) = match job.split() {
        // Two rounds fill a pipeline and empty it. Where a rank has stages in several places, its first round is another's second.
        Some(split) if split.round() > 1 => ([4, 5, 6], WORTH),
        Some(_) => ([2, 3, 4], 6),
        None => ([2, 3, 4], WORTH),
    };
    let [a, b, c] = short;
    (rounds >= enough).then_some(Runs { rounds: [a, b, c, rounds], each, rest: 0 })
}

/// The job of few micro-batches, and what inputs of the others take \[B\]: memory of the two is that of the whole step.
pub(super) fn fewer(job: &Plan) -> (Plan, Bytes) {
    if let Plan::Xla(job) = job {
        let (few, inputs) = job.of_few();
        return (Plan::Xla(few), inputs);
    }
    let short = short_runs(job).and_then(|runs| runs.job(job, runs.rounds[2]));
    (short.unwrap_or_else(|| job.clone()), Bytes(0))
}

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scenario) struct Need {
    /// What device and host lack \[B\]; less than none where there is room.
    pub lacks: i128,
    /// What the tightest device holds, if it fits.
    pub total: Option<Bytes>,
}

/// What a scenario's job takes of its tightest device; none where it cannot be written out.
pub(in crate::scenario) fn need(scenario: &Scenario) -> Option<Need> {
    let (job, beside) = fewer(&scenario.job);
    let flight = scenario.written(&job, scenario.most(Settings::default())).ok()?;
    let (devices, tightest) = memory::devices(scenario, &flight);
    let device = devices.get(tightest)?;
    let lacks = device.lacks() + i128::from(beside.0);
    let fits = device.fits() && lacks <= 0;
    Some(Need { lacks, total: fits.then(|| device.device_total() + beside) })
}

/// The step from short runs; none if they are too long, or say nothing of it.
fn extended(
    scenario: &Scenario,
    settings: Settings,
    runs: Runs,
    known: Option<Written>,
) -> Result<Option<Flown>, ScenarioError> {
    if let Some(flown) = from_one(scenario, settings, runs, known)? {
        return Ok(Some(flown));
    }
    if runs.rounds[3] >= WORTH { from_three(scenario, settings, runs) } else { Ok(None) }
}

/// Rounds after which a pipeline repeats itself that does not after a few: with many stages a rank, or a host that gets far ahead.
const LATER: u32 = 8;

/// The step from the longest short run, if a round of it repeats; else from one of some more rounds. Memory is of all rounds.
fn from_one(
    scenario: &Scenario,
    settings: Settings,
    runs: Runs,
    known: Option<Written>,
) -> Result<Option<Flown>, ScenarioError> {
    let [.., short, all] = runs.rounds;
    let (Some(split), Some(job)) = (scenario.job.split(), runs.job(&scenario.job, short)) else { return Ok(None) };
    let further = |written: u32| (all - written) * runs.each / split.round();
    let begin = |flight: &Flight| flight.classes.iter().all(|program| !program.rounds.is_empty());
    let Some(written) = known.or_else(|| write(scenario, settings, &job)) else { return Ok(None) };
    if !begin(&written.flight) {
        return Ok(None);
    }
    let ran = run(scenario, written, settings, |job, fails| {
        let found = job.run_further(further(short))?;
        fails.store(found.is_none(), Ordering::Relaxed);
        Ok(found)
    })?;
    let Flown { timeline, flight, evidence, mut counts, ranks, mut host_work, memory } = ran;
    let later = || -> Result<Option<(Timeline, Vec<Round>)>, ScenarioError> {
        let Some(job) = runs.job(&scenario.job, LATER).filter(|_| all >= 3 * LATER) else { return Ok(None) };
        // The few rounds are in memory, too.
        let more = scenario.written(&job, scenario.most(settings) / 2).ok().filter(begin);
        let alike = |more: &Flight| {
            flight.classes.iter().zip(&more.classes).all(|(few, more)| {
                (&few.kernels, &few.comms, &few.exchanges) == (&more.kernels, &more.comms, &more.exchanges)
            })
        };
        let Some(more) = more.filter(alike) else { return Ok(None) };
        let written = Written { flight: more, memory: Memory::Unasked };
        Ok(run(scenario, written, settings, |job, _| job.run_further(further(LATER)))?.timeline)
    };
    let found = match timeline {
        Some(found) => Some(found),
        None => later()?,
    };
    let Some((timeline, each)) = found else { return Ok(None) };
    let memory = if memory.0.is_empty() { memory::devices(scenario, &flight) } else { memory };
    if memory.0.iter().any(|device| device.report.rounds_missing) {
        return Ok(None);
    }
    length::check_time(scenario, timeline.step.0.into())?;
    let further = further(short);
    for ((program, counts), round) in flight.classes.iter().zip(&mut counts).zip(&each) {
        counts.add(program, round, further);
    }
    for (paid, round) in host_work.iter_mut().zip(&each) {
        *paid += Time(round.host.0 * u64::from(further));
    }
    Ok(Some(Flown { timeline, flight, evidence, counts, ranks, host_work, memory }))
}

/// Rounds of a pipeline's length that are written of a step of many.
const FEW: [u32; 3] = [2, 4, 6];

/// The programs of a few rounds of a step, and how many times more the engine has to run one of them; few, then some more. None where a
/// step has no rounds, or hardly more.
pub(super) fn few(scenario: &Scenario, settings: Settings) -> impl Iterator<Item = (Flight, u32)> {
    let job = &scenario.job;
    let whole = repeated(job).zip(job.split());
    whole.into_iter().flat_map(move |(each, split)| {
        let (all, rest) = (job.micro_batches() / each, job.micro_batches() % each);
        FEW.into_iter().filter(move |&written| all > written + 1).filter_map(move |written| {
            let job = job.with_micro_batches(written * each + rest)?;
            let flight = scenario.written(&job, scenario.most(settings)).ok()?;
            let begin = flight.classes.iter().all(|program| !program.rounds.is_empty());
            begin.then(|| (flight, (all - written) * each / split.round()))
        })
    })
}

/// The step from three short runs; none if they do not agree on time, or on memory where that is of all of them.
fn from_three(scenario: &Scenario, settings: Settings, runs: Runs) -> Result<Option<Flown>, ScenarioError> {
    let rounds = runs.rounds;
    let sum: u32 = rounds[..3].iter().sum();
    let all_alike = scenario.job.train().is_some();
    let short = |rounds: u32, memory: bool| {
        let Some(job) = runs.job(&scenario.job, rounds) else { return Ok(None) };
        // All three are in memory at once.
        let share = scenario.most(settings) / u64::from(sum) * u64::from(rounds);
        let memory = if memory { Memory::Replay } else { Memory::Unasked };
        let written = scenario.written(&job, share).ok().map(|flight| Written { flight, memory });
        written.map(|written| run(scenario, written, settings, |job, _| job.run())).transpose()
    };
    let (third, (second, first)) = rayon::join(
        || short(rounds[2], true),
        || rayon::join(|| short(rounds[1], all_alike), || short(rounds[0], false)),
    );
    let (Some(first), Some(second), Some(mut third)) = (first?, second?, third?) else { return Ok(None) };
    if all_alike && !memory::agree(&second.memory.0, &third.memory.0) {
        return Ok(None);
    }
    let [a, b, c, all] = rounds.map(u64::from);
    let Some(expected) = engine::extend(&first.timeline, &second.timeline, (a, b, c)) else { return Ok(None) };
    if !engine::agree(&expected, &third.timeline) || !host_keeps_up(&second, &third) {
        return Ok(None);
    }
    let Some(timeline) = engine::extend(&second.timeline, &third.timeline, (b, c, all)) else { return Ok(None) };
    length::check_time(scenario, timeline.step.0.into())?;
    let line = |near: u64, far: u64| far + (far - near) * (all - c);
    for (class, near) in second.flight.classes.iter().enumerate() {
        let (far, counts) = (&third.flight.classes[class], &mut third.counts[class]);
        if far.kernels != near.kernels || far.comms != near.comms || far.exchanges != near.exchanges {
            return Ok(None);
        }
        let before = &second.counts[class];
        for (far, near) in [
            (&mut counts.kernels[..], &before.kernels[..]),
            (&mut counts.comms[..], &before.comms[..]),
            (&mut counts.exchanges[..], &before.exchanges[..]),
        ] {
            far.iter_mut().zip(near).for_each(|(far, &near)| *far = line(near, *far));
        }
        let flops = |far: Flops, near: Flops| Flops(far.0 + (far.0 - near.0) * u128::from(all - c));
        counts.flops = flops(counts.flops, before.flops);
        for (far, &near) in counts.owners.iter_mut().zip(&before.owners) {
            *far = flops(*far, near);
        }
    }
    for (far, near) in third.host_work.iter_mut().zip(&second.host_work) {
        *far = Time(line(near.0, far.0));
    }
    Ok(Some(Flown { timeline, ..third }))
}

/// Whether no host has more to do for a round than the round takes. One that has falls behind the device in the end, which a few rounds
/// need not show: it begins a step with a lead, while the optimizer runs.
fn host_keeps_up(near: &Flown, far: &Flown) -> bool {
    let round = far.timeline.step.saturating_sub(near.timeline.step);
    near.host_work.iter().zip(&far.host_work).all(|(&near, &far)| far.saturating_sub(near) <= round)
}

/// The programs of a job, priced, by class.
pub(super) struct Priced {
    pub(super) costs: Vec<Costs>,
    evidence: Vec<Evidence>,
    counts: Vec<Counts>,
    ranks: Vec<Vec<u32>>,
}

/// What all parts of a job cost, by class; and its ranks, by class.
pub(super) fn ask(scenario: &Scenario, flight: &Flight) -> (Vec<(Costs, Evidence)>, Vec<Vec<u32>>) {
    let model = CostModel::new(&scenario.profile, scenario.regime).with(scenario.software);
    let mut known = costs::Known::new();
    let mut ranks = vec![vec![]; flight.classes.len()];
    for (&class, rank) in flight.class_of.iter().zip(0..) {
        ranks[class as usize].push(rank);
    }
    let classes = flight.classes.iter().zip(&ranks);
    let costs = classes.map(|(program, ranks)| costs::costs(scenario, (program, ranks), &model, &mut known));
    (costs.collect(), ranks)
}

/// The same, with how often each is issued.
pub(super) fn price(scenario: &Scenario, flight: &Flight) -> Result<Priced, ScenarioError> {
    let (costs, ranks) = ask(scenario, flight);
    let (costs, evidence): (Vec<_>, Vec<_>) = costs.into_iter().unzip();
    let counts: Vec<Counts> = flight.classes.par_iter().with_max_len(1).map(|program| Counts::of(program)).collect();
    for ((program, counts), costs) in flight.classes.iter().zip(&counts).zip(&costs) {
        length::check_time(scenario, counts.busy(program, costs))?;
    }
    Ok(Priced { costs, evidence, counts, ranks })
}

/// How programs are run. One that is compiled whole is a single launch, and the host writes the next one down meanwhile.
pub(super) fn options(flight: &Flight) -> Options {
    let whole = flight.classes.iter().filter(|program| program.memory == Discipline::Static);
    let launches = whole.map(|program| program.step.len() as u32).max().unwrap_or(0);
    let usual = Options::default();
    Options { queue_limit: usual.queue_limit.max(launches), ..usual }
}

/// Runs programs as told; replays their memory beside that, if asked for and unless the run says that it fails.
fn run<T: Send>(
    scenario: &Scenario,
    Written { flight, memory }: Written,
    settings: Settings,
    run: impl FnOnce(Prepared<'_>, &AtomicBool) -> Result<T, EngineError> + Send,
) -> Result<Flown<T>, ScenarioError> {
    scenario.simulated(&flight, settings)?;
    let Priced { costs: priced, evidence, counts, ranks } = price(scenario, &flight)?;
    let options = Options { fold: settings.fold, record: settings.record, ..options(&flight) };
    let classes = flight.classes.iter().zip(&priced);
    let classes: Vec<_> = classes.map(|(program, costs)| engine::Class { program, costs }).collect();
    let failed = |error| ScenarioError::Engine(Box::new(error));
    // Laid out by all threads, run by one.
    let job = engine::Job { classes: &classes, class_of: &flight.class_of };
    let prepared = engine::prepare(job, options).map_err(failed)?;
    let host_work = prepared.host_work();
    let fails = AtomicBool::new(false);
    let simulate = || run(prepared, &fails).map_err(failed);
    let replay = || match memory {
        Memory::Unasked => (vec![], 0),
        Memory::Replay => memory::devices_unless(scenario, &flight, || fails.load(Ordering::Relaxed)),
        Memory::Known(known) => known,
    };
    let (timeline, memory) = rayon::join(simulate, replay);
    Ok(Flown { timeline: timeline?, host_work, flight, evidence, counts, ranks, memory })
}

#[cfg(test)]
mod tests;
