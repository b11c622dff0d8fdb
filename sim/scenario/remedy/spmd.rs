//! What a user of the SPMD lane would try first.

use toml::Value;

use super::change::{smaller_batches, with_as_many};
use crate::runtime::spmd::{Attention, Policy, TENSORS, XlaPlan};
use crate::scenario::{Change, Scenario};

/// Changes to a job.
pub(super) fn changes(scenario: &Scenario, job: &XlaPlan) -> Vec<Change> {
    if job.torch.is_some() {
        let again = (job.remat == Policy::None).then(|| Change::set("torch_xla.gradient_checkpointing", true));
        let kernel = (job.attention == Attention::DotProduct).then(|| Change::set("torch_xla.attention", "flash"));
        let one = job.multi_steps.then(|| Change::set("torch_xla.sync_every_micro_batch", false));
        return again.into_iter().chain(kernel).chain(one).chain(smaller_batches(scenario, job.batch)).collect();
    }
    let mut list = policies(scenario, job);
    let more = [4, 16].into_iter().filter(|&parts| job.vocab_tiling < parts);
    list.extend(more.map(|parts| Change::set("xla.num_vocab_tiling", parts as i64)));
    // Parts of the batch that a stage computes at a time; those that do not divide it are not proposed.
    let parts = job.pipeline.into_iter().flat_map(|all| [2, 4].map(|times| all.micro_batches * times));
    list.extend(parts.map(|parts| Change::set("xla.num_pipeline_microbatches", parts as i64)));
    list.extend(contexts(scenario, job));
    list.extend(smaller_batches(scenario, job.batch));
    list
}

/// The most chips of a slice that are proposed to share a sequence.
const MOST_CONTEXT: u32 = 16;

/// Sequences that more chips share, which shard weights as before; a step has as many.
fn contexts(scenario: &Scenario, job: &XlaPlan) -> Vec<Change> {
    // Where the file leaves `mesh.fsdp` open, it takes what is left of a slice.
    let fsdp = scenario.draft.get("mesh.fsdp").and_then(Value::as_integer);
    let own = scenario.draft.get("mesh.context").and_then(Value::as_integer).unwrap_or(1);
    let times = [2, 4, 8, 16].into_iter().filter(|times| job.mesh.context * times <= MOST_CONTEXT);
    let shares = times.filter(|&times| fsdp.is_none_or(|chips| chips % i64::from(times) == 0));
    let change = |times: u32| {
        let context = Change::set("mesh.context", own * i64::from(times));
        let change = match fsdp {
            Some(chips) => context.and(Change::set("mesh.fsdp", chips / i64::from(times))),
            None => context,
        };
        with_as_many(scenario, change, times.into())
    };
    shares.map(change).collect()
}

/// What may be kept of forward instead. Iterations of a pipeline that keep everything read no policy.
fn policies(scenario: &Scenario, job: &XlaPlan) -> Vec<Change> {
    let mut list: Vec<Change> = vec![];
    if let Some(pipeline) = job.pipeline.filter(|all| all.remat == Policy::None) {
        list.push(Change::set("xla.set_remat_policy_on_pipeline_iterations", true));
        if pipeline.layers == job.model.layers.count() {
            return list;
        }
    }
    // A policy by name takes no word for single tensors: where the file has those, they are what is changed.
    let written =
        |tensor: &&str| scenario.draft.get(&format!("xla.{tensor}")).is_some_and(|to| to.as_str() != Some("remat"));
    let custom: Vec<&str> = TENSORS.into_iter().filter(written).collect();
    for to in ["offload", "remat"] {
        // What a block begins with is kept, or nothing could be computed again.
        let changed = custom.iter().filter(|&&tensor| to == "offload" || tensor != TENSORS[0]);
        list.extend(changed.map(|tensor| Change::set(&format!("xla.{tensor}"), to)).reduce(Change::and));
    }
    for (name, policy) in Policy::NAMED {
        if matches!(name, "full" | "qkv_proj_offloaded" | "save_qkv_proj") && job.remat != policy {
            list.push(Change::set("xla.remat_policy", name));
        }
    }
    list
}
