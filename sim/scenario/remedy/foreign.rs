//! What a user of a framework that splits a model as Megatron does would try first.

use super::change::smaller_batches;
use crate::runtime::megatron::{Job, Recompute};
use crate::scenario::Change;

/// Changes to a job; `checkpoint` is the key that lets blocks run again in backward.
pub(super) fn changes(checkpoint: &'static str, job: &Job) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    if job.block.recompute == Recompute::None {
        list.push(Change::set(checkpoint, true));
    }
    list.extend(smaller_batches(job.batch));
    list
}
