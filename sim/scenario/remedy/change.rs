//! A change that makes a plan fit, and those that any framework takes.

use crate::scenario::Change;
use crate::units::Bytes;

/// Half the micro-batch, and one sequence.
pub(super) fn smaller_batches(batch: u64) -> Vec<Change> {
    let mut smaller = vec![batch / 2, 1];
    smaller.dedup();
    let smaller = smaller.into_iter().filter(|&smaller| smaller >= 1 && smaller < batch);
    smaller.map(|batch| Change::set("batch.micro", batch as i64)).collect()
}

/// A single change that would make the plan fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The change, as a line of the scenario.
    pub change: String,
    /// What the device would then have to hold.
    pub device_total: Bytes,
}
