//! What a user of each framework would try first to make a run faster. None of it changes the numbers that are computed, but the
//! batch, where the file does not state it for the whole job.

use toml::Value;

use crate::runtime::Plan;
use crate::runtime::fsdp::{Reshard, Version};
use crate::runtime::megatron::{Recompute, Split};
use crate::runtime::spmd::{Attention, Policy};
use crate::runtime::train::{Checkpoint, TorchPlan};
use crate::scenario::as_many::over;
use crate::scenario::{Change, Scenario};

/// Changes to try.
pub(crate) fn changes(scenario: &Scenario) -> Vec<Change> {
    let mut list = match &scenario.job {
        Plan::Torch(job) => torch(scenario, job),
        Plan::Zero(job) => zero(scenario, &job.whole),
        Plan::Megatron(job) => megatron(scenario, &job.split),
        Plan::InternEvo(job) => split(scenario, &job.split),
        Plan::Nanotron(job) => split(scenario, &job.split),
        Plan::Xla(job) if job.torch.is_some() => {
            let keeps = (job.remat != Policy::None).then(|| Change::set("torch_xla.gradient_checkpointing", false));
            let kernel = (job.attention == Attention::DotProduct).then(|| Change::set("torch_xla.attention", "flash"));
            let one = job.multi_steps.then(|| Change::set("torch_xla.sync_every_micro_batch", false));
            keeps.into_iter().chain(kernel).chain(one).collect()
        }
        Plan::Xla(job) => {
            let others = Policy::NAMED.into_iter().filter(|(_, policy)| *policy != job.remat);
            others.map(|(name, _)| Change::set("xla.remat_policy", name)).collect()
        }
    };
    list.push(larger_batches(scenario));
    if !scenario.expandable_segments {
        list.push(Change::set("memory.expandable_segments", true));
    }
    list
}

/// Micro-batches of twice the size.
fn larger_batches(scenario: &Scenario) -> Change {
    let twice = scenario.job.samples().saturating_mul(2);
    over(scenario, Change::set("batch.micro", i64::try_from(twice).unwrap_or(i64::MAX)), 2)
}

/// What is recomputed in backward, less of it.
fn kept(job: &TorchPlan) -> Vec<Change> {
    let policies: &[&str] = match job.checkpoint {
        Checkpoint::None => &[],
        Checkpoint::Full => &["none", "selective_op"],
        _ => &["none"],
    };
    policies.iter().map(|&policy| Change::set("activation_checkpointing.policy", policy)).collect()
}

fn torch(scenario: &Scenario, job: &TorchPlan) -> Vec<Change> {
    let mut list = kept(job);
    if !job.compile {
        list.push(Change::set("compile.blocks", true));
    }
    if !job.loss.compiled() {
        list.push(Change::set("compile.loss", true));
    }
    list.push(Change::set("loss.kind", "fused_linear"));
    list.push(Change::set("optimizer.implementation", "fused"));
    if job.fsdp.wrap.blocks.iter().flatten().any(|&policy| policy == Reshard::Always) {
        list.push(Change::set("fsdp.reshard_after_forward", false));
    }
    let (nodes, chips) = (scenario.topology.nodes, scenario.topology.node.chips);
    if job.fsdp.version != Version::Unsharded && nodes > 1 && job.fsdp.replicate == 1 && job.fsdp.shard == nodes * chips
    {
        let within = Change::set("mesh.dp_shard", i64::from(chips));
        list.push(within.and(Change::set("mesh.dp_replicate", i64::from(nodes))));
    }
    list
}

fn zero(scenario: &Scenario, job: &TorchPlan) -> Vec<Change> {
    let mut list = kept(job);
    let stage = scenario.draft.get("zero.stage").and_then(Value::as_integer).unwrap_or(1);
    list.extend((1..stage).map(|less| Change::set("zero.stage", less)));
    list.push(Change::set("zero.overlap_comm", true));
    list
}

fn megatron(scenario: &Scenario, job: &Split) -> Vec<Change> {
    let mut list = split(scenario, job);
    list.retain(|change| change.keys().all(|(key, _)| key != "megatron.recompute"));
    if job.block.recompute != Recompute::None {
        list.push(Change::set("megatron.recompute", "none"));
        list.push(Change::set("megatron.recompute", "core_attn"));
    }
    for flag in ["overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap", "overlap_moe_expert_parallel_comm"] {
        list.push(Change::set(&format!("megatron.{flag}"), true));
    }
    if job.mesh.pp > 1 {
        let twice = i64::from(job.pipeline.virtual_stages) * 2;
        list.push(Change::set("pipeline.virtual_stages", twice));
    }
    if job.mesh.tp > 1 && !job.sequence_parallel {
        list.push(Change::set("tensor_parallel.sequence", true));
    }
    list
}

/// Of a model that is split on Megatron's axes: less recomputed, and fewer ranks to a replica.
fn split(scenario: &Scenario, job: &Split) -> Vec<Change> {
    let mut list = vec![];
    if let (Some(flag), true) = (scenario.job.recompute_flag(), job.block.recompute != Recompute::None) {
        list.push(Change::set(flag, false));
    }
    for (axis, ranks) in [("tp", job.mesh.tp), ("pp", job.mesh.pp)] {
        if ranks > 1 && ranks.is_multiple_of(2) {
            let fewer = Change::set(&format!("mesh.{axis}"), i64::from(ranks / 2));
            let more = scenario.draft.get("mesh.dp").is_some();
            let fewer = if more { fewer.and(Change::set("mesh.dp", i64::from(job.mesh.dp) * 2)) } else { fewer };
            list.push(over(scenario, fewer, 2));
        }
    }
    list
}
