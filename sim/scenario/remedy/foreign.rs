//! What a user of a framework that splits a model as Megatron does would try first.

use super::{Change, megatron};
use crate::runtime::megatron::{Job, Recompute};

/// Changes to a job; `checkpoint` is the key that lets blocks run again in backward.
pub(super) fn changes(checkpoint: &str, job: &Job) -> Vec<Change<Job>> {
    let mut list: Vec<Change<Job>> = vec![];
    if job.block.recompute == Recompute::None {
        let again = Box::new(|job: &mut Job| job.block.recompute = Recompute::Uniform { layers: 1 });
        list.push((format!("{checkpoint} = true"), again));
    }
    list.extend(megatron::smaller(job));
    list
}
