//! `[batch]`.

use serde::Deserialize;
use toml::Spanned;

use super::documents::{Documents, Packing};
use super::readers::{
    ALL, COMPILED, DDP, FSDP, INTERNEVO, MEGATRON, NANOTRON, OTHERS, PACKED, PYTORCH, PYTORCH_BUT_DDP, XLA, ZERO,
};
use super::row::between;

keys! {
    /// Batch and sequence.
    #[derive(Debug, Deserialize)]
    ["batch"] Batch in Batch.instead(&[
        (DDP, "it is a switch of fully_shard: remove the key"),
        (MEGATRON, "gradients are reduced after the last micro-batch: remove the key"),
        (ZERO, "zero.stage says when gradients are reduced: remove the key"),
        (INTERNEVO, "gradients are reduced in the last micro-batch: remove the key"),
        (NANOTRON, "gradients are reduced with the last micro-batch: remove the key"),
        (COMPILED, "write batch.micro: sequences on each chip"),
    ]);

    /// Tokens per sequence.
    sequence: Spanned<i64> as between(1, 1 << 26) => ALL.such_as("8192");
    /// Sequences per rank and micro-batch: chips that share their sequences (`tp`, `cp`, `tensor`, `context`) have
    /// them together. With `[dpo]` pairs of them.
    micro: Option<Spanned<i64>> as between(1, 1 << 16) => ALL.such_as("2")
        default ALL => "1" of "torchtitan 0.2.2; MaxText e591f30cb" at "torchtitan/config/job_config.py:253; src/maxtext/configs/base.yml:731";
    /// The same as MaxText counts: sequences over all chips. `batch.micro` is this × `mesh.tensor` × `mesh.context`.
    per_device_batch_size: Option<Spanned<f64>> => XLA.such_as("1.5").instead(&[(OTHERS, "it is MaxText's: write batch.micro")]);
    /// Micro-batches per step.
    accumulation: Option<Spanned<i64>> as between(1, 1 << 16) => ALL.such_as("4")
        default &["ddp", "deepspeed-zero", "fsdp1", "fsdp2", "internevo", "single_device", "torch_xla", "xla"] => "1" of "torchtitan 0.2.2; MaxText e591f30cb" at "torchtitan/config/job_config.py:256; src/maxtext/configs/base.yml:968";
    /// Sequences of a step, of all ranks: `accumulation` follows.
    global: Option<Spanned<i64>> as between(1, i64::MAX / (1 << 26)) => ALL.such_as("512");
    /// Tokens of a step, of all ranks: `accumulation` follows.
    global_tokens: Option<Spanned<i64>> as between(1, i64::MAX) => ALL.such_as("4194304");
    /// How long the documents are that are packed into a sequence, with attention that stays inside each. Without the
    /// key attention sees the whole sequence.
    documents: Option<Spanned<Documents>> => PACKED.such_as("{ length = 512 }").instead(&[
            (COMPILED, "masks by segment hide no block that is computed: remove batch.documents"),
            (OTHERS, "a mask by document is simulated under fsdp2, fsdp1, ddp, single_device and megatron: remove batch.documents"),
        ]);
    /// Whether documents are packed whole, or are a stream that is cut at the end of every sequence.
    packing: Option<Packing> => PACKED.such_as("\"cut\"").instead(&[
            (OTHERS, "it is about batch.documents, which is not read either: remove the key"),
        ]);
    /// Whether gradients are reduced after every micro-batch.
    sync_every_micro_batch: Option<Spanned<bool>> => PYTORCH
        default DDP => "true" of "PyTorch 2.15.0" at "torch/nn/parallel/distributed.py, require_backward_grad_sync: true but in no_sync()"
        default FSDP => "true" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "_fsdp_param_group.py:269 (reduce_grads True); pytorch/torchtitan#1710 (closed: sync by default is the choice); no set_requires_gradient_sync in torchtitan/train.py, trainer.py";
    /// Whether the loop calls `set_is_last_backward`.
    set_is_last_backward: Option<Spanned<bool>> => PYTORCH_BUT_DDP
        default &["fsdp2"] => "false" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "_fsdp_state.py:54; torchtitan/train.py:555-600";
    /// Whether replicas all-reduce after every micro-batch, or only after the last (`set_requires_all_reduce(False)`).
    all_reduce_every_micro_batch: Option<Spanned<bool>> => PYTORCH_BUT_DDP.instead(&[(OTHERS, "it is a switch of fully_shard's replicas: remove the key")]);
}
