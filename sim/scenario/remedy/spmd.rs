//! What a user of the SPMD lane would try first.

use super::{Change, set, smaller_batches};
use crate::runtime::spmd::{Job, Policy};

/// Changes to a job.
pub(super) fn changes(job: &Job) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    for (name, policy) in Policy::NAMED {
        if matches!(name, "full" | "qkv_proj_offloaded" | "save_qkv_proj") && job.remat != policy {
            list.push(set("xla.remat_policy", name));
        }
    }
    list.extend(
        [4, 16]
            .into_iter()
            .filter(|&parts| job.vocab_tiling < parts)
            .map(|parts| set("xla.num_vocab_tiling", parts as i64)),
    );
    list.extend(smaller_batches(job.batch));
    list
}
