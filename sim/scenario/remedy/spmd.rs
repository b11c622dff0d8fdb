//! What a user of the SPMD lane would try first.

use super::Change;
use crate::runtime::spmd::{Job, Policy};

/// Changes to a job.
pub(super) fn changes(job: &Job) -> Vec<Change<Job>> {
    let mut list: Vec<Change<Job>> = vec![];
    for (name, policy) in Policy::NAMED {
        if matches!(name, "full" | "qkv_proj_offloaded" | "save_qkv_proj") && job.remat != policy {
            list.push((format!("xla.remat_policy = {name:?}"), Box::new(move |job: &mut Job| job.remat = policy)));
        }
    }
    for parts in [4, 16] {
        if job.vocab_tiling < parts && job.own_tokens().is_multiple_of(parts) {
            let apply = Box::new(move |job: &mut Job| job.vocab_tiling = parts);
            list.push((format!("xla.num_vocab_tiling = {parts}"), apply));
        }
    }
    if job.batch > 1 {
        let half = job.batch / 2;
        list.push((format!("batch.micro = {half}"), Box::new(move |job: &mut Job| job.batch = half)));
    }
    list
}

/// The same with a shorter sequence, where the loss's parts still divide it.
pub(super) fn shorter(job: &Job, seq: u64) -> Option<Job> {
    let job = Job { seq, ..job.clone() };
    job.own_tokens().is_multiple_of(job.vocab_tiling).then_some(job)
}
