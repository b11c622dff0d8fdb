//! What a user of a framework that splits a model as Megatron does would try first.

use super::change::smaller_batches;
use crate::runtime::megatron::{Recompute, Split};
use crate::scenario::{Change, Scenario};

/// Changes to a job.
pub(super) fn changes(scenario: &Scenario, job: &Split) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    if job.block.recompute == Recompute::None {
        list.extend(scenario.job.recompute_flag().map(|key| Change::set(key, true)));
    }
    list.extend(smaller_batches(scenario, job.batch));
    list
}
