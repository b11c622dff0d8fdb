//! A change that makes a plan fit, and those that any framework takes.

use crate::runtime::Plan;
use crate::scenario::{Change, Scenario};
use crate::units::Bytes;

/// The key that makes up for a smaller batch.
pub(super) const ACCUMULATION: &str = "batch.accumulation";

/// What would make the plan fit: one change, or several together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The change, as lines of the scenario with commas between.
    pub change: String,
    /// What the device would then have to hold.
    pub device_total: Bytes,
}

/// Half the micro-batch, and one sequence, with as many sequences a step as before.
pub(super) fn smaller_batches(scenario: &Scenario, batch: u64) -> Vec<Change> {
    let mut smaller = vec![batch / 2, 1];
    smaller.dedup();
    let smaller =
        smaller.into_iter().filter(|&smaller| smaller >= 1 && smaller < batch && batch.is_multiple_of(smaller));
    let change = |smaller: u64| with_as_many(scenario, Change::set("batch.micro", smaller as i64), batch / smaller);
    smaller.map(change).collect()
}

/// A change that leaves a micro-batch of the whole job a share of its sequences, with that many times as many micro-batches. Where the file
/// says how many sequences a step has, that follows.
pub(super) fn with_as_many(scenario: &Scenario, change: Change, times: u64) -> Change {
    let written = |key: &str| scenario.draft.get(key).is_some();
    // XLA for GPUs is not simulated with more than one micro-batch.
    if matches!(&scenario.job, Plan::Xla(job) if job.gpu().is_some()) {
        return change;
    }
    if !written(ACCUMULATION) && (written("batch.global") || written("batch.global_tokens")) {
        return change;
    }
    change.and(Change::set(ACCUMULATION, accumulation(scenario) * times as i64))
}

/// Micro-batches of a step.
pub(super) fn accumulation(scenario: &Scenario) -> i64 {
    i64::from(scenario.job.micro_batches())
}
