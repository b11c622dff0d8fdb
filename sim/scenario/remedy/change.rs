//! Changes of a file, and one that makes a plan fit.

use toml::Value;

use crate::units::Bytes;

/// Keys that are set together.
pub(super) type Change = Vec<(String, Value)>;

/// One key that is set.
pub(super) fn set(key: &str, value: impl Into<Value>) -> Change {
    vec![(key.to_owned(), value.into())]
}

/// Half the micro-batch, and one sequence.
pub(super) fn smaller_batches(batch: u64) -> Vec<Change> {
    let mut smaller = vec![batch / 2, 1];
    smaller.dedup();
    let smaller = smaller.into_iter().filter(|&smaller| smaller >= 1 && smaller < batch);
    smaller.map(|batch| set("batch.micro", batch as i64)).collect()
}

/// A single change that would make the plan fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The change, as a line of the scenario.
    pub change: String,
    /// What the device would then have to hold.
    pub device_total: Bytes,
}
