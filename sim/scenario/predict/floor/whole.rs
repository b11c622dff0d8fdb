//! Ranks that run the whole model: a model of three of its layers and one of four, with one to three micro-batches.
//!
//! What ends last, and what is held most, is the largest of sums that grow evenly with layers. Such a maximum grows at least as fast
//! further on as it does between two small models, so going on from them is below what the whole model takes. Of what the second and the
//! third micro-batch add, the less is taken for all that follow. Where layers differ, the plan itself is walked.

use super::bound::Floor;
use super::known::{Floors, Setting};
use super::walk::Walked;
use crate::model::layer::Layers;
use crate::plan::torch::Checkpoint;
use crate::runtime::Plan;
use crate::scenario::Scenario;
use crate::units::{Bytes, Time};

/// Layers of the smaller of two models: the first and the last one may differ from those between them.
const FEW: u64 = 3;

/// What a step takes at least, in numbers that grow evenly with layers and micro-batches.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// When the default stream is done with forward and backward \[ps\].
    end: u64,
    /// The time of the busiest stream \[ps\].
    busiest: u64,
    /// The most that tensors hold \[B\].
    peak: u64,
}

impl Taken {
    fn of(walked: Walked) -> Taken {
        Taken { end: walked.worked.0, busiest: walked.busiest.0, peak: walked.peak }
    }

    /// The smaller of each number.
    fn least(self, other: Taken) -> Taken {
        Taken {
            end: self.end.min(other.end),
            busiest: self.busiest.min(other.busiest),
            peak: self.peak.min(other.peak),
        }
    }

    /// What `times` further steps from `self` to `next` come to.
    fn further(self, next: Taken, times: u64) -> Taken {
        let on = |near: u64, far: u64| near.saturating_add(far.saturating_sub(near).saturating_mul(times));
        Taken { end: on(self.end, next.end), busiest: on(self.busiest, next.busiest), peak: on(self.peak, next.peak) }
    }
}

/// What a plan of ranks that run the whole model needs at least.
pub(super) fn floor(floors: &Floors, scenario: &Scenario, room: Bytes) -> Floor {
    let setting = floors.setting(scenario);
    bound(&setting, scenario, room).unwrap_or_default()
}

fn bound(setting: &Setting, scenario: &Scenario, room: Bytes) -> Option<Floor> {
    let job = &scenario.job;
    let all = job.micro_batches();
    let one = whole(setting, scenario, 1)?;
    // More micro-batches hold no less than one.
    let memory = Bytes(one.0.peak) + one.1;
    if memory > room {
        return Some(Floor { memory, step: Time::ZERO });
    }
    let taken = match all {
        1 => one.0,
        2 => whole(setting, scenario, 2)?.0,
        _ => {
            let two = whole(setting, scenario, 2)?.0;
            let three = whole(setting, scenario, 3)?.0;
            // The second micro-batch may do what only the first does, such as keeping its gradients.
            one.0.further(two, u64::from(all) - 1).least(two.further(three, u64::from(all) - 2))
        }
    };
    Some(Floor { memory, step: Time(taken.end.max(taken.busiest)) })
}

/// What all layers take with so many micro-batches, and what lives outside the allocator.
fn whole(setting: &Setting, scenario: &Scenario, micro_batches: u32) -> Option<(Taken, Bytes)> {
    let job = &scenario.job;
    let plan = job.with_micro_batches(micro_batches).unwrap_or_else(|| job.clone());
    let layers = job.model().layers.count();
    let (Some(few), Some(more)) = (short(&plan, FEW), short(&plan, FEW + 1)) else {
        let stage = setting.walks(scenario, &plan)?.into_iter().next()?;
        return Some((Taken::of(stage.walked), stage.outside));
    };
    let [few, more] = [few, more].map(|plan| setting.shared(scenario, plan)?.first().copied());
    let (few, more) = (few?, more?);
    let taken = Taken::of(few.walked).further(Taken::of(more.walked), layers - FEW);
    Some((taken, few.outside))
}

/// The plan with fewer layers, where all but the first and the last are alike.
fn short(plan: &Plan, layers: u64) -> Option<Plan> {
    let Plan::Torch(torch) = plan else { return None };
    let same = match &torch.checkpoint {
        Checkpoint::None | Checkpoint::Full | Checkpoint::SelectiveOp | Checkpoint::Saving(_) => true,
        Checkpoint::Blocks(_) => false,
    };
    let kinds = torch.model.layers.kinds().len();
    let wrap = &torch.fsdp.wrap;
    let blocks = &wrap.blocks;
    let inner = blocks.get(1..blocks.len().saturating_sub(1)).unwrap_or_default();
    // One unit of all layers is gathered and stepped as one, which is less than many.
    let units = blocks.iter().all(Option::is_some);
    let even =
        units && inner.windows(2).all(|pair| pair[0] == pair[1]) && wrap.lists.is_empty() && wrap.modules.is_empty();
    if !same || kinds > 1 || !even || torch.model.layers.count() <= layers || torch.pipeline.is_some() {
        return None;
    }
    let mut torch = torch.clone();
    torch.model.layers = Layers::alike(torch.model.layers.kinds().first()?.clone(), layers);
    let (first, last) = (blocks.first().cloned(), blocks.last().cloned());
    let middle = inner.first().cloned();
    let policies = first.into_iter().chain(std::iter::repeat_n(middle?, layers as usize - 2)).chain(last);
    torch.fsdp.wrap.blocks = policies.collect();
    Some(Plan::Torch(torch))
}
