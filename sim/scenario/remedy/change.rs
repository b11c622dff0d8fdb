//! A change that makes a plan fit, and those that any framework takes.

use crate::runtime::Plan;
use crate::scenario::as_many::as_many;
use crate::scenario::{Change, Scenario};
use crate::units::Bytes;

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

/// A change that leaves a micro-batch of the whole job a share of its sequences, with that many times as many micro-batches.
pub(super) fn with_as_many(scenario: &Scenario, change: Change, times: u64) -> Change {
    // XLA for GPUs is not simulated with more than one micro-batch.
    if matches!(&scenario.job, Plan::Xla(job) if job.gpu().is_some()) {
        return change;
    }
    as_many(scenario, change, i64::from(scenario.job.micro_batches()) * times as i64)
}
