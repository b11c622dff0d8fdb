//! The table of PyTorch/XLA.

use serde::Deserialize;
use toml::Spanned;

/// `attention`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TorchAttention {
    /// `torch.matmul` around a softmax.
    Eager,
    /// `torch.einsum` around a softmax.
    Einsum,
    /// `F.scaled_dot_product_attention`.
    Sdpa,
    /// The Pallas kernel.
    Flash,
}

/// `precision`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TorchPrecision {
    /// Weights in fp32, matmuls in bf16.
    Autocast,
    /// `model.to(torch.bfloat16)`.
    Bfloat16,
}

/// `[torch_xla]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchXla {
    /// How attention is written.
    pub attention: Option<Spanned<TorchAttention>>,
    /// Whether blocks are wrapped by `checkpoint_module`.
    pub gradient_checkpointing: Option<bool>,
    /// Types.
    pub precision: Option<TorchPrecision>,
    /// Whether gradients are clipped to a norm.
    pub clip_grad_norm: Option<bool>,
    /// Whether `torch_xla.sync()` comes after each micro-batch.
    pub sync_every_micro_batch: Option<Spanned<bool>>,
    /// Whether linears are `XLAPatchedLinear`.
    pub patched_linear: Option<bool>,
}
