//! Keys that a job on Megatron's modules does not read.

use super::rule::{ALL_EXPERTS, Rule};
use crate::model::Position;
use crate::program::DType;
use crate::runtime::megatron::{Core, Fsdp, MegatronPlan, Strategy, has_no_use_for_buckets};
use crate::scenario::names::{INTERNEVO, NANOTRON};

fn flash(job: &MegatronPlan) -> bool {
    job.block.core == Core::Flash
}

/// Whether ranks run all experts, of which a capacity would drop rows, and fp8 would fill each one's up.
fn all_experts(job: &MegatronPlan) -> bool {
    job.mesh.ep == 1 && job.matmuls.fp8().is_none() && job.mixture.is_some_and(|run| run.capacity.is_none())
}

/// Whether Megatron-FSDP groups gradients that ranks share alike with buckets and without.
fn no_buckets(job: &MegatronPlan, fsdp: Fsdp) -> bool {
    let bucket = job.gradients.bucket.unwrap_or_else(|| job.mesh.bucket());
    matches!(fsdp.strategy, Strategy::Gradients | Strategy::Parameters) && has_no_use_for_buckets(job, fsdp, bucket)
}

pub(super) const RULES: &[Rule<MegatronPlan>] = &[
    Rule(
        &["attention.backend", "megatron.deterministic_mode"],
        |plan| !flash(plan.job),
        "attention is unfused: two batched matmuls and a softmax",
    ),
    Rule(
        &["megatron.masked_softmax_fusion"],
        |plan| flash(plan.job),
        "the softmax is inside the flash attention kernel",
    ),
    Rule(
        &["megatron.attention_dropout"],
        |plan| flash(plan.job),
        "the flash attention kernel draws it, and is costed alike with and without",
    ),
    Rule(
        &["megatron.rope_fusion"],
        |plan| !matches!(plan.job.model.position, Position::Rope { .. }),
        "the model has no rotary embedding",
    ),
    Rule(
        &["megatron.align_param_gather"],
        |plan| plan.job.pipeline.virtual_stages == 1,
        "ranks have one stage each, and gather at their own pace",
    ),
    Rule(&["model.expert_load", "megatron.moe_router_force_load_balancing"], |plan| all_experts(plan.job), ALL_EXPERTS),
    Rule(
        &["megatron.overlap_grad_reduce"],
        |plan| plan.job.pipeline.virtual_stages == 1 && plan.job.fsdp.is_some_and(|fsdp| no_buckets(plan.job, fsdp)),
        "Megatron-FSDP reduces gradients that ranks share as they are made, and no bucket parts them",
    ),
    Rule(
        &["precision.param"],
        |plan| [NANOTRON, INTERNEVO].contains(&plan.runtime.written()) && plan.job.dtype == DType::Fp16,
        "its fp16 is predicted as its bf16",
    ),
    Rule(
        &["nanotron.ddp_bucket_cap_mb"],
        |plan| plan.runtime == NANOTRON && plan.job.optimizer.distributed,
        "under ZeRO-1 no DistributedDataParallel is around the model",
    ),
    Rule(
        &["nanotron.pp_engine"],
        |plan| plan.runtime == NANOTRON && plan.job.micro_batches == 1,
        "a step has one micro-batch, which both engines run alike",
    ),
];
