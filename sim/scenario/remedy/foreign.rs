//! What a user of a framework that splits a model as Megatron does would try first.

use super::change::{Change, set, smaller_batches};
use crate::runtime::megatron::{MegatronPlan, Recompute};

/// Changes to a job; `checkpoint` is the key that lets blocks run again in backward.
pub(super) fn changes(checkpoint: &'static str, job: &MegatronPlan) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    if job.block.recompute == Recompute::None {
        list.push(set(checkpoint, true));
    }
    list.extend(smaller_batches(job.batch));
    list
}
