//! Keys that a job of PyTorch's own runtimes, or of DeepSpeed's ZeRO around a PyTorch module, does not read.

use super::rule::{ALL_EXPERTS, Rule};
use crate::model::experts::Implementation;
use crate::model::head::Loss;
use crate::model::style::AttentionCode;
use crate::model::{Norm, Position};
use crate::program::DType;
use crate::runtime::fsdp::Reshard;
use crate::runtime::train::{Checkpoint, TorchPlan};
use crate::scenario::names::{DEEPSPEED_ZERO, FSDP1, SINGLE_DEVICE};

const NO_CHECKPOINTS: &str = "nothing is checkpointed";
const ONE_MICRO_BATCH: &str = "a step has one micro-batch";

fn checkpoints(job: &TorchPlan) -> bool {
    !matches!(job.checkpoint, Checkpoint::None)
}

/// Whether the root is the only parameter group.
fn root_alone(job: &TorchPlan) -> bool {
    let wrap = &job.fsdp.wrap;
    let ends = [&wrap.embedding, &wrap.norm, &wrap.head];
    wrap.modules.is_empty() && wrap.blocks.iter().all(Option::is_none) && ends.iter().all(|end| end.is_none())
}

/// Whether no module's parameters are gathered again in backward.
fn keeps_all(job: &TorchPlan) -> bool {
    job.fsdp.wrap.blocks.iter().flatten().all(|policy| *policy == Reshard::Never)
}

/// Whether units have all of the model's parameters, and leave the root none.
fn root_has_none(job: &TorchPlan) -> bool {
    let wrap = &job.fsdp.wrap;
    let norm = wrap.norm.is_some() || wrap.head_has_norm || job.model.final_norm.is_none();
    wrap.blocks.iter().all(Option::is_some)
        && wrap.embedding.is_some()
        && wrap.head.is_some()
        && norm
        && !job.model.tied_head
}

/// Whether no module has registered a buffer: rotary tables and biases on attention scores are some.
fn has_no_buffers(job: &TorchPlan) -> bool {
    match job.model.position {
        Position::Rope { .. } => false,
        Position::Alibi => !job.eager.bias_tensor,
        _ => true,
    }
}

/// Whether adapters multiply in fp32.
fn fp32_adapters(job: &TorchPlan) -> bool {
    let lora = job.trained.as_ref().and_then(|trained| trained.lora.as_ref());
    lora.is_some_and(|lora| lora.dtype == DType::Fp32)
}

/// Whether a matmul is in fp32: all of them, or those of torchtitan's router.
fn fp32(job: &TorchPlan) -> bool {
    let router = job.model.experts().is_some() && matches!(job.style.experts, Implementation::Torchtitan { .. });
    router || job.multiplies_in() == DType::Fp32
}

pub(super) const RULES: &[Rule<TorchPlan>] = &[
    Rule(
        &[
            "activation_checkpointing.early_stop",
            "activation_checkpointing.around_compiled",
            "activation_checkpointing.around_hooks",
        ],
        |plan| !checkpoints(plan.job),
        NO_CHECKPOINTS,
    ),
    Rule(
        &["activation_checkpointing.early_stop"],
        |plan| plan.job.reentrant,
        "a reentrant checkpoint recomputes to its end",
    ),
    Rule(
        &["activation_checkpointing.early_stop"],
        |plan| plan.job.compile && !plan.job.checkpoint_compiled,
        "checkpoints are compiled with their blocks, and recompute what backward reads",
    ),
    Rule(&["activation_checkpointing.around_compiled"], |plan| !plan.job.compile, "no block is compiled"),
    Rule(
        &["activation_checkpointing.around_hooks"],
        |plan| !plan.job.reentrant,
        "only a reentrant checkpoint runs hooks inside it",
    ),
    Rule(&["attention.alibi_tensor"], |plan| plan.job.model.position != Position::Alibi, "the model has no ALiBi"),
    Rule(
        &["attention.backend", "attention.reads_back", "attention.deterministic"],
        |plan| plan.job.style.attention == AttentionCode::Eager,
        "attention is eager: two matmuls and a softmax",
    ),
    Rule(
        &["attention.backend", "attention.deterministic"],
        |plan| plan.job.multiplies_in() == DType::Fp32 && !plan.job.eager.flex_attention,
        "in fp32 PyTorch takes the memory-efficient kernel, whichever is asked for",
    ),
    Rule(
        &["attention.reads_back", "attention.deterministic"],
        |plan| plan.job.eager.flex_attention,
        "FlexAttention is compiled: it reads nothing back, and its backward adds up in one order",
    ),
    Rule(
        &[
            "batch.sync_every_micro_batch",
            "batch.set_is_last_backward",
            "batch.all_reduce_every_micro_batch",
            "fsdp.reshard_after_backward",
        ],
        |plan| plan.job.accumulation == 1,
        ONE_MICRO_BATCH,
    ),
    Rule(
        &["batch.sync_every_micro_batch", "batch.set_is_last_backward"],
        |plan| plan.job.pipeline.is_some(),
        "a pipeline reduces gradients after a stage's last micro-batch",
    ),
    Rule(
        &["batch.sync_every_micro_batch", "batch.set_is_last_backward"],
        |plan| plan.runtime == SINGLE_DEVICE,
        "one device reduces no gradients",
    ),
    Rule(
        &["batch.all_reduce_every_micro_batch"],
        |plan| plan.job.fsdp.replicate == 1,
        "there are no replicas that all-reduce: mesh.dp_replicate is 1",
    ),
    Rule(
        &["batch.all_reduce_every_micro_batch"],
        |plan| plan.runtime == FSDP1,
        "FSDP1's replicas all-reduce whenever gradients are reduced",
    ),
    Rule(&["batch.set_is_last_backward"], |plan| plan.runtime == FSDP1, "only fully_shard has it"),
    Rule(
        &["ddp.find_unused_parameters"],
        |plan| plan.job.ddp.is_some_and(|settings| settings.static_graph),
        "a static graph is searched once, in the first step",
    ),
    Rule(&["ddp.broadcast_buffers"], |plan| has_no_buffers(plan.job), "the model has no buffers to broadcast"),
    Rule(
        &["memory.initialisation"],
        |plan| plan.job.fsdp.cpu_offload,
        "parameters are initialised in the host's memory, and leave nothing in the device's cache",
    ),
    Rule(
        &["framework.fused_qkv"],
        |plan| plan.job.model.latent().is_some(),
        "latent attention has no projections of queries, keys and values to fuse",
    ),
    Rule(
        &["framework.fused_rms_norm"],
        |plan| matches!(plan.job.model.norms().kind, Norm::Layer { .. }),
        "the model has LayerNorm",
    ),
    Rule(
        &["framework.repeat_kv"],
        |plan| plan.job.model.heads() == plan.job.model.kv_heads(),
        "every query head has keys and values of its own",
    ),
    Rule(
        &[
            "fsdp.forward_prefetch",
            "fsdp.backward_prefetch",
            "fsdp.reduce_scatter_buffers",
            "fsdp.unshard_in_backward",
            "fsdp1.backward_prefetch",
        ],
        |plan| root_alone(plan.job),
        "the root is the only parameter group",
    ),
    Rule(
        &["fsdp.backward_prefetch", "fsdp.unshard_in_backward"],
        |plan| keeps_all(plan.job),
        "parameters stay gathered until backward",
    ),
    Rule(
        &["fsdp.reshard_after_forward"],
        |plan| plan.runtime == FSDP1 && root_alone(plan.job),
        "the root is the only parameter group, which FSDP1 keeps until backward",
    ),
    Rule(
        &["fsdp.root_reshard_after_forward"],
        |plan| plan.runtime == FSDP1,
        "FSDP1 keeps the root's parameters until backward",
    ),
    Rule(
        &["fsdp.root_reshard_after_forward"],
        |plan| root_has_none(plan.job),
        "units have all parameters, and the root has none",
    ),
    Rule(
        &["fsdp.head_reshard_after_forward"],
        |plan| plan.job.model.tied_head,
        "the head is the embedding's table, which goes by that one's policy",
    ),
    Rule(
        &["fsdp.head_reshard_after_forward"],
        |plan| matches!(plan.job.loss, Loss::ChunkedGradients { unshards: false, .. }),
        "the loss holds what the head has gathered until the step's end",
    ),
    Rule(
        &[
            "loss.kind",
            "loss.chunks",
            "loss.words",
            "loss.keep_logits",
            "loss.inside_model",
            "loss.unshards_head",
            "loss.unnamed_logits",
            "compile.loss",
        ],
        |plan| plan.job.reference.is_some(),
        "[dpo] has a loss of its own",
    ),
    Rule(&["lora.dropout"], |plan| plan.job.reference.is_some(), "trainers of preferences switch dropout off"),
    Rule(
        &["loss.keep_logits"],
        |plan| !plan.job.loss.sees_whole_logits() && !matches!(plan.job.loss, Loss::ChunkedOutput { .. }),
        "the model hands its loss no logits",
    ),
    Rule(
        &["loss.unnamed_logits"],
        |plan| plan.job.cuda_graphs,
        "a CUDA graph's blocks are taken for all of its replays",
    ),
    Rule(
        &["optimizer.implementation", "optimizer.weight_decay"],
        |plan| plan.job.fsdp.cpu_offload,
        "the optimizer steps on the host, which is priced by what it reads and writes",
    ),
    Rule(
        &["optimizer.scale_gradients"],
        |plan| plan.job.step_in_backward,
        "each gradient goes as soon as it is there, and none is left to scale",
    ),
    Rule(
        &["model.expert_load"],
        |plan| matches!(plan.job.style.experts, Implementation::Grouped | Implementation::Torchtitan { ranks: 1 }),
        ALL_EXPERTS,
    ),
    Rule(&["loss.unnamed_logits"], |plan| plan.job.tensor.loss, "a loss of split logits casts them in its own way"),
    Rule(&["loss.unnamed_logits"], |plan| plan.job.pipeline.is_some(), "the pipeline's schedule holds the logits"),
    Rule(
        &["loss.unnamed_logits"],
        |plan| plan.job.multiplies_in() == DType::Fp32,
        "logits are in fp32 already, and nothing casts them",
    ),
    Rule(
        &["optimizer.weight_decay"],
        |plan| plan.runtime == DEEPSPEED_ZERO || plan.job.optimizer.decays_for_free(),
        "one kernel applies it and steps",
    ),
    Rule(&["precision.tf32"], |plan| !fp32(plan.job) && !fp32_adapters(plan.job), "no matmul is in fp32"),
];
