//! The table of PyTorch/XLA.

use serde::Deserialize;
use toml::Spanned;

use super::readers::TORCH_XLA;

words! {
    /// `attention`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum TorchAttention {
        /// `torch.matmul` around a softmax.
        Eager = "eager",
        /// `torch.einsum` around a softmax.
        Einsum = "einsum",
        /// `F.scaled_dot_product_attention`.
        Sdpa = "sdpa",
        /// The Pallas kernel.
        Flash = "flash",
    }
}

words! {
    /// `precision`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum TorchPrecision {
        /// Weights in fp32, matmuls in bf16.
        Autocast = "autocast",
        /// `model.to(torch.bfloat16)`.
        Bfloat16 = "bfloat16",
    }
}

keys! {
    /// What a script on PyTorch/XLA has.
    #[derive(Debug, Default, Deserialize)]
    ["torch_xla"] TorchXla in Rest.owner("torch_xla");

    /// How attention is written: `torch.matmul` around a softmax (Hugging Face's `eager`), the same by `torch.einsum`,
    /// `F.scaled_dot_product_attention`, or the Pallas kernel of `torch_xla.experimental.custom_kernel`.
    attention: Option<Spanned<TorchAttention>> => TORCH_XLA
        default TORCH_XLA => "\"sdpa\"" of "Hugging Face transformers" at "modeling_utils.py, _autoset_attn_implementation: sdpa where a model has it";
    /// Whether blocks are wrapped by `checkpoint_module` (Hugging Face's `xla_fsdp_grad_ckpt`).
    gradient_checkpointing: Option<bool> => TORCH_XLA
        default TORCH_XLA => "false" of "Hugging Face transformers" at "training_args.py, xla_fsdp_grad_ckpt";
    /// Weights in fp32 and matmuls under `torch.autocast("xla", torch.bfloat16)`, or all of the model and its
    /// optimizer states in bf16.
    precision: Option<TorchPrecision> => TORCH_XLA
        default TORCH_XLA => "\"autocast\"" of "Hugging Face transformers" at "training_args.py, bf16: weights stay in fp32, and matmuls run under autocast";
    /// Whether `clip_grad_norm_` runs before the optimizer.
    clip_grad_norm: Option<bool> => TORCH_XLA
        default TORCH_XLA => "true" of "Hugging Face transformers" at "training_args.py, max_grad_norm = 1.0";
    /// Whether `torch_xla.sync()` (`mark_step`) ends a graph after every micro-batch, as `MpDeviceLoader` has it;
    /// otherwise one graph has all of them.
    sync_every_micro_batch: Option<Spanned<bool>> => TORCH_XLA
        default TORCH_XLA => "true" of "torch_xla 2.9.0" at "torch_xla/distributed/parallel_loader.py: mark_step after batches_per_execution = 1";
    /// Whether linears are patched (`apply_xla_patch_to_nn_linear`), so that inputs keep their three dimensions.
    patched_linear: Option<bool> => TORCH_XLA;
}
