//! Keys that a job on Megatron's modules does not read.

use super::rule::{ALL_EXPERTS, Rule};
use crate::model::Position;
use crate::model::experts::Experts;
use crate::program::DType;
use crate::runtime::megatron::{Core, CrossEntropy, MegatronPlan, Split, Strategy, has_no_use_for_buckets};
use crate::runtime::nanotron::NanotronPlan;
use crate::scenario::names::{INTERNEVO, NANOTRON};

fn flash(job: &Split) -> bool {
    job.block.core == Core::Flash
}

/// Whether ranks run all experts, of which a capacity would drop rows, and fp8 would fill each one's up.
fn all_experts(job: &Split) -> bool {
    job.mesh.ep == 1 && job.matmuls.fp8().is_none() && job.mixture.is_some_and(|run| run.capacity.is_none())
}

/// Whether Megatron-FSDP groups gradients that ranks share alike with buckets and without.
fn no_buckets(job: &MegatronPlan) -> bool {
    let Some(fsdp) = job.fsdp else { return false };
    let bucket = job.gradients.bucket.unwrap_or_else(|| job.split.mesh.bucket());
    matches!(fsdp.strategy, Strategy::Gradients | Strategy::Parameters) && has_no_use_for_buckets(job, fsdp, bucket)
}

/// Keys that say how ranks share the model, and how its modules are written.
pub(super) const RULES: &[Rule<Split>] = &[
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
        &["megatron.rope_fusion"],
        |plan| plan.job.model.rope_scaled && plan.job.model.latent().is_none(),
        "YaRN multiplies cosines and sines by a factor, which the fused kernel has not: Megatron-Core runs the unfused operators",
    ),
    Rule(
        &["megatron.core_version"],
        |plan| {
            plan.job.model.mtp_layers == 0
                && !matches!(plan.job.block.cross_entropy, CrossEntropy::Engine | CrossEntropy::EngineCopy)
        },
        "releases differ in multi-token prediction and in Transformer Engine's cross-entropy, and neither is here",
    ),
    Rule(
        &["megatron.align_param_gather"],
        |plan| plan.job.pipeline.virtual_stages == 1,
        "ranks have one stage each, and gather at their own pace",
    ),
    Rule(
        &["megatron.use_fused_weighted_squared_relu"],
        |plan| !plan.job.model.experts().is_some_and(Experts::square_relu),
        "no expert of the model squares a ReLU",
    ),
    Rule(&["model.expert_load", "megatron.moe_router_force_load_balancing"], |plan| all_experts(plan.job), ALL_EXPERTS),
    Rule(
        &["precision.param"],
        |plan| [NANOTRON, INTERNEVO].contains(&plan.runtime.written()) && plan.job.dtype == DType::Fp16,
        "its fp16 is predicted as its bf16",
    ),
];

/// Keys of Megatron-Core's own loop.
pub(super) const LOOP: &[Rule<MegatronPlan>] = &[Rule(
    &["megatron.overlap_grad_reduce"],
    |plan| plan.job.split.pipeline.virtual_stages == 1 && no_buckets(plan.job),
    "Megatron-FSDP reduces gradients that ranks share as they are made, and no bucket parts them",
)];

/// Keys of nanotron.
pub(super) const OF_NANOTRON: &[Rule<NanotronPlan>] = &[
    Rule(
        &["nanotron.ddp_bucket_cap_mb"],
        |plan| plan.job.zero,
        "under ZeRO-1 no DistributedDataParallel is around the model",
    ),
    Rule(
        &["nanotron.pp_engine"],
        |plan| plan.job.split.micro_batches == 1,
        "a step has one micro-batch, which both engines run alike",
    ),
];
