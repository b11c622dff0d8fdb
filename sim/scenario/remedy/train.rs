//! What a user of FSDP would try first.

use super::Change;
use crate::runtime::fsdp::Reshard;
use crate::runtime::optimizer::Optimizer;
use crate::runtime::train::{Checkpoint, Job};
use crate::scenario::Scenario;

/// Changes to a job of PyTorch's own runtimes.
pub(super) fn changes(scenario: &Scenario, job: &Job) -> Vec<Change<Job>> {
    let mut list: Vec<Change<Job>> = vec![];
    // A policy for all blocks takes effect only where no block has one of its own.
    let all_blocks = if scenario.overrides { ", fsdp.override = []" } else { "" };
    if job.checkpoint == Checkpoint::None {
        let selective = Box::new(|job: &mut Job| job.checkpoint = Checkpoint::SelectiveOp);
        list.push(("activation_checkpointing.policy = \"selective_op\"".to_owned(), selective));
    }
    if job.checkpoint != Checkpoint::Full {
        let full = Box::new(|job: &mut Job| job.checkpoint = Checkpoint::Full);
        list.push(("activation_checkpointing.policy = \"full\"".to_owned(), full));
    }
    if job.fsdp.wrap.blocks.iter().flatten().any(|&policy| policy != Reshard::Always) {
        let reshard = Box::new(|job: &mut Job| {
            if let Some(policy) = &mut job.fsdp.wrap.embedding {
                *policy = Reshard::Always;
            }
            for policy in job.fsdp.wrap.blocks.iter_mut().flatten() {
                *policy = Reshard::Always;
            }
        });
        list.push((format!("fsdp.reshard_after_forward = true{all_blocks}"), reshard));
    }
    if job.fsdp.wrap.blocks.iter().any(Option::is_none) {
        let wrap = Box::new(|job: &mut Job| job.fsdp.wrap.blocks.fill(Some(Reshard::Always)));
        let change = format!("fsdp.wrap = \"block\", fsdp.reshard_after_forward = true{all_blocks}");
        list.push((change, wrap));
    }
    if matches!(job.optimizer, Optimizer::AdamwForeach { .. }) {
        let fused = Box::new(|job: &mut Job| job.optimizer = Optimizer::AdamwFused);
        list.push(("optimizer.implementation = \"fused\"".to_owned(), fused));
    }
    if job.fsdp.replicate > 1 {
        let (shard, replicate) = (job.fsdp.shard, job.fsdp.replicate);
        let all = Box::new(move |job: &mut Job| {
            job.fsdp.shard = shard * replicate;
            job.fsdp.replicate = 1;
        });
        list.push((format!("mesh.dp_shard = {}, mesh.dp_replicate = 1", shard * replicate), all));
    }
    let mut smaller = vec![job.batch / 2, 1];
    smaller.dedup();
    for batch in smaller.into_iter().filter(|&batch| batch >= 1 && batch < job.batch) {
        let change = Box::new(move |job: &mut Job| job.batch = batch);
        list.push((format!("batch.micro = {batch}"), change));
    }
    if !job.fsdp.cpu_offload {
        let offload = Box::new(|job: &mut Job| job.fsdp.cpu_offload = true);
        list.push(("fsdp.cpu_offload = true".to_owned(), offload));
    }
    list
}

/// The job on shorter sequences.
pub(super) fn shorter(job: &Job, seq: u64) -> Option<Job> {
    Some(Job { seq, max_positions: seq, ..job.clone() })
}
