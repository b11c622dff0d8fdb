//! What a user of FSDP would try first.

use toml::Value;

use super::change::{Change, set, smaller_batches};
use crate::runtime::fsdp::{Reshard, Version};
use crate::runtime::train::{Checkpoint, TorchPlan};
use crate::scenario::Scenario;
use crate::scenario::experts::filled_up;

/// Elements of a bucket that costs a tenth of DeepSpeed's default.
const SMALLER_BUCKET: i64 = 50_000_000;

/// Changes to a job of PyTorch's own runtimes.
pub(super) fn changes(scenario: &Scenario, job: &TorchPlan) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    // A policy for all blocks takes effect only where no block has one of its own.
    let all_blocks = scenario.draft.get("fsdp.override").map(|_| ("fsdp.override".to_owned(), Value::Array(vec![])));
    if job.checkpoint == Checkpoint::None {
        list.push(set("activation_checkpointing.policy", "selective_op"));
    }
    if job.checkpoint != Checkpoint::Full {
        list.push(set("activation_checkpointing.policy", "full"));
    }
    if filled_up(job).is_some() {
        list.push(set("framework.experts", "torchtitan"));
    }
    let reshard = || set("fsdp.reshard_after_forward", true).into_iter().chain(all_blocks.clone());
    if job.fsdp.wrap.blocks.iter().flatten().any(|&policy| policy != Reshard::Always) {
        list.push(reshard().collect());
    }
    if job.fsdp.wrap.blocks.iter().any(Option::is_none) {
        list.push(set("fsdp.wrap", "block").into_iter().chain(reshard()).collect());
    }
    if let Some(how) = job.optimizer.slimmer() {
        list.push(set("optimizer.implementation", how.written()));
    }
    if job.fsdp.replicate > 1 {
        let all = i64::from(job.fsdp.shard * job.fsdp.replicate);
        list.push(set("mesh.dp_shard", all).into_iter().chain(set("mesh.dp_replicate", 1)).collect());
    }
    // Under DeepSpeed; elsewhere the table is refused.
    let stage = scenario.draft.get("zero.stage").and_then(Value::as_integer);
    if let Some(stage) = stage {
        list.extend((stage.max(1) + 1..=3).map(|more| set("zero.stage", more)));
        list.push(set("zero.reduce_bucket_size", SMALLER_BUCKET));
        list.push(set("zero.overlap_comm", false));
        list.push(set("zero.stage3_max_reuse_distance", 0));
        let host = [("device", Value::from("cpu")), ("pin_memory", Value::from(true))];
        let host = host.map(|(key, value)| (key.to_owned(), value));
        list.push(set("zero.offload_optimizer", Value::Table(host.into_iter().collect())));
    }
    list.extend(smaller_batches(job.batch));
    if job.fsdp.version != Version::Unsharded {
        list.push(set("fsdp.cpu_offload", !job.fsdp.cpu_offload));
    }
    list
}
