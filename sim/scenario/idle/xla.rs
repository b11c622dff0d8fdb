//! Keys that a compiled job does not read.

use super::rule::Rule;
use crate::plan::optimizer::OptaxOf;
use crate::runtime::spmd::{Attention, Policy, XlaPlan};

pub(super) const RULES: &[Rule<XlaPlan>] = &[
    Rule(
        &["xla.sa_block_size", "xla.sa_use_fused_bwd_kernel", "xla.use_tokamax_splash"],
        |plan| plan.job.attention == Attention::DotProduct,
        "attention is dot_product, and no splash kernel runs",
    ),
    Rule(
        &["xla.optax_multi_steps"],
        |plan| plan.job.accumulation == 1,
        "a step has one micro-batch, and no gradients are added up",
    ),
    Rule(
        &["xla.mu_dtype"],
        |plan| plan.job.optax != OptaxOf::Adamw,
        "only AdamW's first moments have a type of their own",
    ),
    Rule(
        &["xla.float32_qk_product"],
        |plan| plan.job.attention != Attention::DotProduct,
        "attention is a kernel, which has its scores in fp32",
    ),
    Rule(
        &["xla.norm_by_product"],
        |plan| plan.job.remat != Policy::None || !plan.job.scan,
        "what norms keep for backward is computed again, or made where it is read",
    ),
    Rule(
        &["xla.scan_layers_per_stage"],
        |plan| plan.job.pipeline.is_some_and(|pipeline| pipeline.layers_per_stage == 1),
        "a stage has one layer",
    ),
    Rule(
        &["xla.mlpwo"],
        |_| true,
        "a block's last matmul makes what the next block begins with, which is xla.decoder_layer_input",
    ),
    Rule(
        &["mesh.allow_split_physical_axes"],
        |_| true,
        "it says which meshes JAX lays, and no prediction depends on it",
    ),
    Rule(
        &["mesh.expert"],
        |plan| plan.job.model.experts().is_none() && plan.job.mesh.context == 1 && !plan.job.mesh.experts_only,
        "without experts the axis shards as mesh.fsdp does",
    ),
    Rule(
        &["mesh.fsdp_transpose"],
        |plan| plan.job.model.experts().is_none(),
        "without experts the axis shards as mesh.fsdp does",
    ),
    Rule(
        &["torch_xla.patched_linear"],
        |_| true,
        "in four pairs of compiled steps the patch took 0.2 to 10 % more memory and up to a third fewer exchanges, which no prediction reads",
    ),
    Rule(
        &["torch_xla.sync_every_micro_batch"],
        |plan| plan.job.accumulation == 1,
        "a step has one micro-batch, behind which a sync comes anyway",
    ),
    Rule(&["xla.activation_embed"], |plan| plan.job.mesh.tensor == 1, "mesh.tensor is 1, and the width is not split"),
];
