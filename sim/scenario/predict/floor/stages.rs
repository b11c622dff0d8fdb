//! Pipelines: what a layer costs and keeps is read from a pipeline of four short stages; the plan's schedule says what that comes to.
//!
//! The short pipeline has stages of one, two, one and one layers. What the second has beyond the third is a layer; what the others
//! have beyond a layer is the embedding, what every stage has, and the head. One micro-batch and two of them are written: their
//! difference is what each further micro-batch takes, without what happens once in a step.

use std::sync::Arc;

use super::known::{Setting, Stage};
use super::{Floor, Floors};
use crate::model::layer::Layers;
use crate::runtime::Plan;
use crate::runtime::megatron::{CudaGraphs, Recompute, Split};
use crate::scenario::Scenario;
use crate::schedule::{self, Costs, order};
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

    /// One stage, from steps of one micro-batch and of two.
    fn of(one: &Stage, two: &Stage) -> Part {
        let (one, two) = (one.walked, two.walked);
        let each = two.end.saturating_sub(one.end).0;
        // Where the second forward follows the first, it is known by itself.
        let forward = if two.forward > one.forward { two.forward.saturating_sub(one.forward) } else { one.forward };
        let forward = forward.0.min(each);
        Part {
            forward,
            backward: each - forward,
            weights: two.weights.saturating_sub(one.weights).0.min(each - forward),
            kept: one.kept,
            states: one.before,
        }
    }
}

/// A model's layers of one kind, and the ends of its pipeline.
struct Parts {
    layer: Part,
    first: Part,
    every: Part,
    last: Part,
    outside: Bytes,
}

/// What a plan with a pipeline needs at least.
pub(super) fn floor(floors: &Floors, scenario: &Scenario, split: &Split) -> Floor {
    let graphs = scenario.job.megatron().is_some_and(|plan| plan.graphs != CudaGraphs::None);
    if graphs || split.vocabulary_split().is_some() {
        return Floor::default();
    }
    let setting = floors.setting(scenario);
    bound(&setting, scenario, split).unwrap_or_default()
}

fn bound(setting: &Arc<Setting>, scenario: &Scenario, split: &Split) -> Option<Floor> {
    // Of recomputed blocks only the first ones of each stage are.
    let (again, plain) = match split.block.recompute {
        Recompute::Block { layers } => (layers, Some(Recompute::None)),
        _ => (u64::MAX, None),
    };
    let kinds = split.model.layers.kinds().len();
    let read = |kind: usize, recompute: Option<Recompute>| parts(setting, scenario, kind, recompute);
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
            0 => ends.first,
            _ if index + 1 == stages => ends.last,
            _ => ends.every,
        };
        // What is kept beside layers is not counted: some of it is there once for all micro-batches.
        Part { kept: blocks.kept, ..blocks.with(rest) }
    };
    let all: Vec<Part> = split.pipeline.layers.iter().enumerate().map(&mut stage).collect();
    let round = split.mesh.pp.max(2);
    // Once a pipeline is full, each further micro-batch takes the longest stage's rank as long again.
    let few = split.micro_batches.min((6 * round).max(12).next_multiple_of(round));
    let shape = schedule::Shape { microbatches: few, ..split.shape() };
    let schedule = split.pipeline.schedule.build(shape).ok()?;
    let times = |of: fn(&Part) -> u64| all.iter().map(|part| Time(of(part))).collect::<Vec<_>>();
    let combines = split.combines();
    let costs = Costs {
        forward: times(|part| part.forward),
        backward: times(|part| part.backward),
        input: times(|part| part.backward - part.weights),
        weight: times(|part| part.weights),
        hop: vec![Time::ZERO; stages],
    };
    let timeline = schedule::replay(&schedule, &costs).ok()?;
    let of_rank = |rank: usize| schedule.lists.rank(rank).iter();
    let mut each = vec![0_u64; schedule.ranks()];
    let mut mine = vec![vec![]; schedule.ranks()];
    for (rank, stages) in mine.iter_mut().enumerate() {
        *stages = of_rank(rank).map(|action| action.stage as usize).collect::<Vec<_>>();
        stages.sort_unstable();
        stages.dedup();
        each[rank] = stages.iter().map(|&stage| all[stage].forward + all[stage].backward).sum();
    }
    let further = u64::from(split.micro_batches - few) * each.iter().max()?;
    let step = if combines || split.pipeline.schedule.is_of(&order::SEARCHED) {
        Time::ZERO
    } else {
        timeline.makespan() + Time(further)
    };
    let kept: Vec<[u64; 2]> = all.iter().map(|part| [part.kept, 0]).collect();
    let most = schedule::peak_memory(&schedule, &kept);
    let held = mine.iter().zip(most).map(|(stages, kept)| {
        let states: u64 = stages.iter().map(|&stage| all[stage].states.saturating_sub(ends.every.states)).sum();
        ends.every.states + states + kept
    });
    Some(Floor { memory: Bytes(held.max()?) + ends.outside, step })
}

/// What layers of a kind and the ends of the pipeline take; none where there is no short pipeline of them.
fn parts(setting: &Arc<Setting>, scenario: &Scenario, kind: usize, recompute: Option<Recompute>) -> Option<Parts> {
    let short = |micro_batches: u32| setting.shared(scenario, short(&scenario.job, kind, recompute, micro_batches)?);
    let (one, two) = (short(1)?, short(2)?);
    let of = |stage: usize| Some(Part::of(one.get(stage)?, two.get(stage)?));
    let (first, twice, every, last) = (of(0)?, of(1)?, of(2)?, of(3)?);
    let layer = twice.without(every);
    Some(Parts {
        layer,
        first: first.without(layer),
        every: every.without(layer),
        last: last.without(layer),
        outside: one.get(2)?.outside,
    })
}

/// The plan with a short pipeline of one kind of layer.
fn short(plan: &Plan, kind: usize, recompute: Option<Recompute>, micro_batches: u32) -> Option<Plan> {
    let mut plan = plan.clone();
    let split = match &mut plan {
        Plan::Megatron(plan) => &mut plan.split,
        Plan::InternEvo(plan) => &mut plan.split,
        Plan::Nanotron(plan) => &mut plan.split,
        Plan::Torch(_) | Plan::Zero(_) | Plan::Xla(_) => return None,
    };
    let layer = split.model.layers.kinds().get(kind)?.clone();
    split.model.layers = Layers::alike(layer, SHORT.iter().sum());
    split.mesh.pp = SHORT.len() as u32;
    split.micro_batches = micro_batches;
    let halves = order::MEGATRON_HALVES.iter().any(|entry| entry.name == split.pipeline.schedule.name);
    if split.pipeline.virtual_stages > 1 || halves {
        split.pipeline.schedule = order::MEGATRON_PLAIN;
    }
    split.pipeline.virtual_stages = 1;
    split.pipeline.overlap_p2p = false;
    split.pipeline.layers = SHORT.to_vec();
    match (recompute, &mut split.block.recompute) {
        (Some(other), known) => *known = other,
        (None, Recompute::Block { layers }) => *layers = (*layers).max(SHORT.iter().sum()),
        (None, _) => {}
    }
    Some(plan)
}
