//! Ranks that run the whole model: one micro-batch of the plan itself, counted as often as the step has micro-batches.

use super::{Floor, Floors};
use crate::runtime::{Parts, Plan};
use crate::scenario::Scenario;
use crate::units::{Bytes, Time};

/// What a plan without a pipeline needs at least.
pub(super) fn floor(floors: &Floors, scenario: &Scenario) -> Floor {
    let (job, setting) = (&scenario.job, floors.setting(scenario));
    let times = u64::from(job.micro_batches());
    let one = job.with_micro_batches(1).unwrap_or_else(|| job.clone());
    let walk = |plan: &Plan| setting.walks(scenario, plan, times)?.into_iter().next();
    let Some(first) = walk(&one) else { return Floor::default() };
    let alone = if times == 1 { first.walked.end } else { Time::ZERO };
    // Tensor-parallel ranks wait for one another between kernels: each micro-batch adds what a second one adds to the first.
    let added = match job.parts() {
        Parts::Split(split) if times > 1 && !split.combines() => job.with_micro_batches(2).and_then(|two| walk(&two)),
        _ => None,
    };
    let chained = added.map_or(Time::ZERO, |second| {
        first.walked.end + second.walked.end.saturating_sub(first.walked.end) * (times - 1)
    });
    let step = first.walked.busiest.max(alone).max(chained);
    Floor { memory: Bytes(first.walked.peak) + first.outside, step }
}
