//! What a user of FSDP would try first.

use toml::Value;

use super::{Change, set, smaller_batches};
use crate::runtime::fsdp::Reshard;
use crate::runtime::optimizer::Optimizer;
use crate::runtime::train::{Checkpoint, Job};
use crate::scenario::Scenario;

/// Changes to a job of PyTorch's own runtimes.
pub(super) fn changes(scenario: &Scenario, job: &Job) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    // A policy for all blocks takes effect only where no block has one of its own.
    let all_blocks = scenario.draft.get("fsdp.override").map(|_| ("fsdp.override", Value::Array(vec![])));
    if job.checkpoint == Checkpoint::None {
        list.push(set("activation_checkpointing.policy", "selective_op"));
    }
    if job.checkpoint != Checkpoint::Full {
        list.push(set("activation_checkpointing.policy", "full"));
    }
    let reshard = || set("fsdp.reshard_after_forward", true).into_iter().chain(all_blocks.clone());
    if job.fsdp.wrap.blocks.iter().flatten().any(|&policy| policy != Reshard::Always) {
        list.push(reshard().collect());
    }
    if job.fsdp.wrap.blocks.iter().any(Option::is_none) {
        list.push(set("fsdp.wrap", "block").into_iter().chain(reshard()).collect());
    }
    if matches!(job.optimizer, Optimizer::AdamwForeach { .. }) {
        list.push(set("optimizer.implementation", "fused"));
    }
    if job.fsdp.replicate > 1 {
        let all = i64::from(job.fsdp.shard * job.fsdp.replicate);
        list.push(vec![("mesh.dp_shard", all.into()), ("mesh.dp_replicate", 1.into())]);
    }
    // Under DeepSpeed; elsewhere the table is refused.
    let stage = scenario.draft.get("zero.stage").and_then(Value::as_integer);
    list.extend((2..=3).filter(|&more| stage.is_some_and(|stage| stage < more)).map(|more| set("zero.stage", more)));
    list.extend(smaller_batches(job.batch));
    if !job.fsdp.cpu_offload {
        list.push(set("fsdp.cpu_offload", true));
    }
    list
}
