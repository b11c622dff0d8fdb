//! What a user of Megatron-Core would try first.

use toml::{Table, Value};

use super::change::smaller_batches;
use crate::runtime::megatron::{Core, CudaGraphs, Loader, MegatronPlan, Recompute, Strategy};
use crate::scenario::{Change, Scenario};

/// No mask from the loader, where one comes that fused attention does not read.
pub(super) fn without_mask(job: &MegatronPlan) -> Option<Change> {
    let comes = matches!(job.loader, Loader::Broadcast { mask: true, .. } | Loader::EachRank { mask: true });
    comes.then(|| Change::set("megatron.create_attention_mask_in_dataloader", false))
}

/// Changes to a job of Megatron-Core.
pub(super) fn changes(scenario: &Scenario, job: &MegatronPlan) -> Vec<Change> {
    let mut list: Vec<Change> = without_mask(job).into_iter().collect();
    if job.split.block.recompute == Recompute::None && job.split.block.core != Core::Flash {
        list.push(Change::set("megatron.recompute", "core_attn"));
    }
    if !matches!(job.split.block.recompute, Recompute::Uniform { .. }) {
        let uniform = Table::from_iter([("uniform".to_owned(), Value::Integer(1))]);
        list.push(Change::set("megatron.recompute", uniform));
    }
    if let Some(fsdp) = job.fsdp {
        if fsdp.strategy < Strategy::Parameters {
            list.push(Change::set("megatron.data_parallel_sharding_strategy", "optim_grads_params"));
        } else if !fsdp.double_buffer {
            list.push(Change::set("megatron.fsdp_double_buffer", true));
        }
    }
    if job.graphs != CudaGraphs::None {
        list.push(Change::set("megatron.cuda_graph_impl", "none"));
    }
    if !job.optimizer.distributed && job.split.mesh.dp * job.split.mesh.cp > 1 {
        list.push(Change::set("megatron.distributed_optimizer", true));
    }
    if !job.split.sequence_parallel && job.split.mesh.tp > 1 {
        list.push(Change::set("tensor_parallel.sequence", true));
    }
    list.extend(smaller_batches(scenario, job.split.batch));
    list
}
