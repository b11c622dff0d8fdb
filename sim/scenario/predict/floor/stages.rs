//! Models that are split on Megatron's axes: what a layer costs and keeps is read from a few layers, and the plan's schedule says what
//! that comes to.
//!
//! A pipeline is read from four short stages, of one, two, one and one layers. What the second has beyond the third is a layer; what the
//! others have beyond a layer is the embedding, what every stage has, and the head. Without a pipeline a model of one layer and one of
//! two say the same. One micro-batch and two of them are written: their difference is what each further micro-batch takes, without
//! what happens once in a step. Data-parallel ranks are left out as far as experts are not spread over them, so that plans that differ
//! in them, in stages and in micro-batches share what is read.

use std::sync::Arc;

use super::bound::Floor;
use super::known::{Floors, Setting, Stage};
use super::walk::Walked;
use crate::model::layer::Layers;
use crate::runtime::Plan;
use crate::runtime::megatron::{CudaGraphs, Recompute, Split};
use crate::scenario::Scenario;
use crate::schedule::{self, Costs, Schedule, order};
use crate::units::{Bytes, Time};

/// Layers of the stages of a short pipeline.
const SHORT: [u64; 4] = [1, 2, 1, 1];

/// What a layer, or the rest of a stage, takes for one micro-batch, and keeps.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Forward \[ps\].
    forward: u64,
    /// Backward \[ps\].
    backward: u64,
    /// Of it, gradients of weights \[ps\].
    weights: u64,
    /// What stays from forward until backward \[B\].
    kept: u64,
    /// What stays from step to step \[B\].
    states: u64,
}

impl Part {
    fn with(self, other: Part) -> Part {
        self.each(other, |one, other| one + other)
    }

    fn without(self, other: Part) -> Part {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Part, of: fn(u64, u64) -> u64) -> Part {
        Part {
            forward: of(self.forward, other.forward),
            backward: of(self.backward, other.backward),
            weights: of(self.weights, other.weights),
            kept: of(self.kept, other.kept),
            states: of(self.states, other.states),
        }
    }

    /// One stage, from steps of one micro-batch and of two. `fold` times as many ranks share the optimizer's states. Where exchanges of
    /// experts may go on while other kernels run, the default stream's kernels alone are counted.
    fn of(one: &Stage, two: &Stage, fold: u32, chained: bool) -> Part {
        let (one, two) = (one.walked, two.walked);
        let more = |of: fn(&Walked) -> Time| of(&two).saturating_sub(of(&one)).0;
        let each = if chained { more(|walked| walked.worked) } else { more(|walked| walked.kernels) };
        // Where the second forward follows the first, what it takes with its waits is known.
        let waits = if chained { more(|walked| walked.forward) } else { 0 };
        let forward = waits.max(more(|walked| walked.forwards)).min(each);
        Part {
            forward,
            backward: each - forward,
            weights: two.weights.saturating_sub(one.weights).0.min(each - forward),
            kept: one.kept,
            states: one.before.saturating_sub(one.optimizer) + one.optimizer / u64::from(fold),
        }
    }
}

/// A model's layers of one kind, and the ends of its pipeline.
struct Parts {
    layer: Part,
    first: Part,
    every: Part,
    last: Part,
    /// The embedding and the head on one stage.
    both: Part,
    outside: Bytes,
}

/// What a plan needs at least.
pub(super) fn floor(floors: &Floors, scenario: &Scenario, split: &Split, room: Bytes) -> Floor {
    let graphs = scenario.job.megatron().is_some_and(|plan| plan.graphs != CudaGraphs::None);
    if graphs || split.vocabulary_split().is_some() {
        return Floor::default();
    }
    let setting = floors.setting(scenario);
    let bound = || {
        let memory = memory(split, &stages(&setting, scenario, split, false)?)?;
        match memory > room {
            true => Some(Floor { memory, step: Time::ZERO }),
            false => Some(Floor { memory, step: step(split, &stages(&setting, scenario, split, true)?)? }),
        }
    };
    bound().unwrap_or_default()
}

/// What the stages of a pipeline take and keep.
struct Stages {
    all: Vec<Part>,
    /// What a stage has beside its layers.
    every: Part,
    outside: Bytes,
}

/// The stages of a plan; unless `timed` without what they take.
fn stages(setting: &Arc<Setting>, scenario: &Scenario, split: &Split, timed: bool) -> Option<Stages> {
    // Of recomputed blocks only the first ones of each stage are.
    let (again, plain) = match split.block.recompute {
        Recompute::Block { layers } => (layers, Some(Recompute::None)),
        _ => (u64::MAX, None),
    };
    let kinds = split.model.layers.kinds().len();
    let read = |kind: usize, recompute: Option<Recompute>| parts(setting, scenario, (kind, recompute), timed);
    let layers: Vec<Parts> = (0..kinds).map(|kind| read(kind, None)).collect::<Option<_>>()?;
    let plain: Vec<Parts> = match plain {
        Some(_) => (0..kinds).map(|kind| read(kind, plain)).collect::<Option<_>>()?,
        None => vec![],
    };
    let ends = layers.first()?;
    let ids: Vec<usize> = split.model.layers.ids().map(|id| id.index()).collect();
    let stages = split.pipeline.layers.len();
    let mut at = 0;
    let mut stage = |(index, &count): (usize, &u64)| {
        let mine = at as usize..(at + count) as usize;
        at += count;
        let of = |(place, &kind): (u64, &usize)| {
            let kinds = if place < again || plain.is_empty() { &layers } else { &plain };
            kinds[kind].layer
        };
        let blocks = (0..).zip(ids.get(mine).unwrap_or_default()).map(of).fold(Part::default(), Part::with);
        let rest = match index {
            0 if stages == 1 => ends.both,
            0 => ends.first,
            _ if index + 1 == stages => ends.last,
            _ => ends.every,
        };
        // What a pipeline keeps beside layers is not counted: some of it is there once for all micro-batches.
        let kept = if stages == 1 { blocks.kept + rest.kept } else { blocks.kept };
        Part { kept, ..blocks.with(rest) }
    };
    let all = split.pipeline.layers.iter().enumerate().map(&mut stage).collect();
    Some(Stages { all, every: ends.every, outside: ends.outside })
}

/// Few of the plan's micro-batches, and its schedule of them: once a pipeline is full, each further one takes the longest stage's rank as
/// long again.
fn few(split: &Split) -> Option<(u32, Schedule)> {
    let round = split.mesh.pp.max(2);
    let few = split.micro_batches.min((6 * round).max(12).next_multiple_of(round));
    let shape = schedule::Shape { microbatches: few, ..split.shape() };
    Some((few, split.pipeline.schedule.build(shape).ok()?))
}

/// The stages of each rank.
fn of_ranks(schedule: &Schedule) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..schedule.ranks()).map(|rank| {
        let mut stages: Vec<usize> = schedule.lists.rank(rank).iter().map(|action| action.stage as usize).collect();
        stages.sort_unstable();
        stages.dedup();
        stages
    })
}

/// What the fullest rank holds.
fn memory(split: &Split, stages: &Stages) -> Option<Bytes> {
    let Stages { all, every, outside } = stages;
    let (_, schedule) = few(split)?;
    let kept: Vec<[u64; 2]> = all.iter().map(|part| [part.kept, 0]).collect();
    let most = schedule::peak_memory(&schedule, &kept);
    let held = of_ranks(&schedule).zip(most).map(|(stages, kept)| {
        let states: u64 = stages.iter().map(|&stage| all[stage].states.saturating_sub(every.states)).sum();
        every.states + states + kept
    });
    Some(Bytes(held.max()?) + *outside)
}

/// What a step takes.
fn step(split: &Split, Stages { all, .. }: &Stages) -> Option<Time> {
    let (few, schedule) = few(split)?;
    let each = |stages: Vec<usize>| stages.iter().map(|&stage| all[stage].forward + all[stage].backward).sum::<u64>();
    let slowest = of_ranks(&schedule).map(each).max()?;
    if split.combines() {
        // Forward of one micro-batch runs beside backward of another: what its kernels take in all is known, and no order.
        return Some(Time(u64::from(split.micro_batches) * slowest));
    }
    if split.pipeline.schedule.is_of(&order::SEARCHED) {
        return Some(Time::ZERO);
    }
    let times = |of: fn(&Part) -> u64| all.iter().map(|part| Time(of(part))).collect::<Vec<_>>();
    let costs = Costs {
        forward: times(|part| part.forward),
        backward: times(|part| part.backward),
        input: times(|part| part.backward - part.weights),
        weight: times(|part| part.weights),
        hop: vec![Time::ZERO; all.len()],
    };
    let timeline = schedule::replay(&schedule, &costs).ok()?;
    Some(timeline.makespan() + Time(u64::from(split.micro_batches - few) * slowest))
}

/// What layers of a kind and the ends of the pipeline take; none where there are no short programs of them. Unless `timed` no program of
/// two micro-batches is written, and no part has a time.
fn parts(
    setting: &Arc<Setting>,
    scenario: &Scenario,
    (kind, recompute): (usize, Option<Recompute>),
    timed: bool,
) -> Option<Parts> {
    let plan = &scenario.job;
    let read = |layers: &[u64], micro_batches: u32| {
        let (short, fold) = short(plan, (kind, recompute), layers, micro_batches)?;
        Some((setting.shared(scenario, short)?, fold))
    };
    let chained = !plan.split()?.combines();
    let parts = |layers: &[u64]| -> Option<(Vec<Part>, Bytes)> {
        let (one, fold) = read(layers, 1)?;
        let two = if timed { read(layers, 2)?.0 } else { Arc::clone(&one) };
        let parts = one.iter().zip(two.iter()).map(|(one, two)| Part::of(one, two, fold, chained)).collect();
        Some((parts, one.iter().map(|stage| stage.outside).min()?))
    };
    if plan.split()?.mesh.pp == 1 {
        let (one, outside) = parts(&[1])?;
        let (one, two) = (*one.first()?, *parts(&[2])?.0.first()?);
        let layer = two.without(one);
        let none = Part::default();
        return Some(Parts { layer, both: one.without(layer), first: none, every: none, last: none, outside });
    }
    let (stages, outside) = parts(&SHORT)?;
    let &[first, twice, every, last] = &stages[..] else { return None };
    let layer = twice.without(every);
    let [first, every, last] = [first, every, last].map(|stage| stage.without(layer));
    Some(Parts { layer, first, every, last, both: Part::default(), outside })
}

/// The plan with few layers of one kind, as many in each stage as are listed; and how many times fewer data-parallel ranks it has.
fn short(
    plan: &Plan,
    (kind, recompute): (usize, Option<Recompute>),
    layers: &[u64],
    micro_batches: u32,
) -> Option<(Plan, u32)> {
    let mut plan = plan.clone();
    // Of Megatron's own optimizer it is known that data-parallel ranks share its states evenly.
    let even = plan.megatron().filter(|plan| plan.fsdp.is_none() && plan.optimizer.distributed).is_some();
    let split = match &mut plan {
        Plan::Megatron(plan) => &mut plan.split,
        Plan::InternEvo(plan) => &mut plan.split,
        Plan::Nanotron(plan) => &mut plan.split,
        Plan::Torch(_) | Plan::Zero(_) | Plan::Xla(_) => return None,
    };
    let layer = split.model.layers.kinds().get(kind)?.clone();
    split.model.layers = Layers::alike(layer, layers.iter().sum());
    let mut fold = 1;
    if even {
        let (stage, experts) = (split.mesh.tp * split.mesh.cp, split.mesh.ep * split.mesh.etp);
        let least = (1..=experts).find(|ranks| (stage * ranks).is_multiple_of(experts)).unwrap_or(1);
        if split.mesh.dp.is_multiple_of(least) {
            fold = split.mesh.dp / least;
            split.mesh.dp = least;
        }
    }
    split.mesh.pp = layers.len() as u32;
    split.micro_batches = micro_batches;
    let halves = order::MEGATRON_HALVES.iter().any(|entry| entry.name == split.pipeline.schedule.name);
    if split.pipeline.virtual_stages > 1 || halves {
        split.pipeline.schedule = order::MEGATRON_PLAIN;
    }
    split.pipeline.virtual_stages = 1;
    split.pipeline.overlap_p2p = false;
    split.pipeline.layers = layers.to_vec();
    match (recompute, &mut split.block.recompute) {
        (Some(other), known) => *known = other,
        // Each of these layers is recomputed by itself, as in a stage that has as many.
        (None, known @ Recompute::Block { .. }) => *known = Recompute::Uniform { layers: 1 },
        (None, _) => {}
    }
    Some((plan, fold))
}
