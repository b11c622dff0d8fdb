//! What a user of FSDP would try first.

use toml::Value;

use super::change::{smaller_batches, with_as_many};
use crate::runtime::fsdp::{Reshard, Version};
use crate::runtime::train::{Checkpoint, TorchPlan};
use crate::scenario::experts::filled_up;
use crate::scenario::{Change, Scenario};

/// Elements of a bucket that costs a tenth of DeepSpeed's default.
const SMALLER_BUCKET: i64 = 50_000_000;

/// Changes to a job of PyTorch's own runtimes.
pub(super) fn changes(scenario: &Scenario, job: &TorchPlan) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    // A policy for all blocks takes effect only where no block has one of its own.
    let all_blocks = |change: Change| match scenario.draft.get("fsdp.override") {
        Some(_) => change.and(Change::set("fsdp.override", Value::Array(vec![]))),
        None => change,
    };
    if job.checkpoint == Checkpoint::None {
        list.push(Change::set("activation_checkpointing.policy", "selective_op"));
    }
    if job.checkpoint != Checkpoint::Full {
        list.push(Change::set("activation_checkpointing.policy", "full"));
    }
    if filled_up(job).is_some() {
        list.push(Change::set("framework.experts", "torchtitan"));
    }
    let reshard = || Change::set("fsdp.reshard_after_forward", true);
    if job.fsdp.wrap.blocks.iter().flatten().any(|&policy| policy != Reshard::Always) {
        list.push(all_blocks(reshard()));
    }
    if job.fsdp.wrap.blocks.iter().any(Option::is_none) {
        list.push(all_blocks(Change::set("fsdp.wrap", "block").and(reshard())));
    }
    if scenario.draft.get("loss.kind").and_then(Value::as_str) != Some("fused_linear") {
        list.push(Change::set("loss.kind", "fused_linear"));
    }
    if let Some(how) = job.optimizer.slimmer() {
        list.push(Change::set("optimizer.implementation", how.written()));
    }
    if job.ddp.is_some_and(|settings| !settings.gradient_as_bucket_view) {
        list.push(Change::set("ddp.gradient_as_bucket_view", true));
    }
    if job.fsdp.replicate > 1 && job.ddp.is_none() {
        let all = i64::from(job.fsdp.shard * job.fsdp.replicate);
        list.push(Change::set("mesh.dp_shard", all).and(Change::set("mesh.dp_replicate", 1)));
    }
    if job.fsdp.version == Version::Two && job.fsdp.shard.is_multiple_of(2) {
        let twice = 2 * scenario.draft.get("mesh.cp").and_then(Value::as_integer).unwrap_or(1);
        let half = i64::from(job.fsdp.shard / 2);
        let split = Change::set("mesh.cp", twice).and(Change::set("mesh.dp_shard", half));
        let split = with_as_many(scenario, split, 2);
        // Eager blocks have no context parallelism.
        list.push(if job.compile { split } else { split.and(Change::set("compile.blocks", true)) });
    }
    // Under DeepSpeed; elsewhere the table is refused.
    let stage = scenario.draft.get("zero.stage").and_then(Value::as_integer);
    if let Some(stage) = stage {
        list.extend((stage.max(1) + 1..=3).map(|more| Change::set("zero.stage", more)));
        list.push(Change::set("zero.reduce_bucket_size", SMALLER_BUCKET));
        list.push(Change::set("zero.overlap_comm", false));
        list.push(Change::set("zero.stage3_max_reuse_distance", 0));
        let host = [("device", Value::from("cpu")), ("pin_memory", Value::from(true))];
        let host = host.map(|(key, value)| (key.to_owned(), value));
        list.push(Change::set("zero.offload_optimizer", Value::Table(host.into_iter().collect())));
    }
    list.extend(smaller_batches(scenario, job.batch / job.sequences_of_a_sample()));
    if job.fsdp.version != Version::Unsharded {
        list.push(Change::set("fsdp.cpu_offload", !job.fsdp.cpu_offload));
    }
    list
}
