//! Settings of eager execution.

use crate::model::operators::Saved;
use crate::model::style::NormCode;
use crate::program::{Dispatch, StreamId};

/// Whose kernels LayerNorm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum LayerNorm {
    /// PyTorch's.
    Torch,
    /// Apex's first ones, which Megatron has a copy of (`fused_mix_prec_layer_norm_cuda`).
    Apex,
    /// Apex's `FastLayerNorm`, where it has one for the width.
    Persistent,
}

/// A set of [`Saved`] operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct SavedOps(u8);

impl SavedOps {
    /// The set with one more.
    #[must_use]
    pub fn with(self, op: Saved) -> SavedOps {
        SavedOps(self.0 | 1 << op as u8)
    }

    /// Whether an operator is in it.
    pub fn has(self, op: Saved) -> bool {
        self.0 & 1 << op as u8 != 0
    }
}

/// Where copies of values that are kept in the host's memory run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Offload {
    /// In the default stream.
    DefaultStream,
    /// In a stream of their own.
    OwnStream(StreamId),
}

/// Settings of eager execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Settings {
    /// cuBLAS workspace, taken and given back by each matmul \[B\].
    pub workspace: u64,
    /// Whether the workspace stays taken once a thread has used it (PyTorch 2.6: one for forward, one for the thread of
    /// the backward) instead of being given back after each matmul (2.15).
    pub persistent_workspace: bool,
    /// Whether RMSNorm is one kernel (PyTorch 2.15) or composed of pointwise ones (2.6).
    pub fused_rms_norm: bool,
    /// How it is composed, where it is.
    pub norm_code: NormCode,
    /// Whose kernels LayerNorm is.
    pub layer_norm: LayerNorm,
    /// Whether biases on attention scores (ALiBi) are a tensor given to `scaled_dot_product_attention`, which then runs
    /// the memory-efficient kernel, or slopes inside a flash kernel.
    pub bias_tensor: bool,
    /// SMs of the chip, which size the buffers of reductions.
    pub sms: u32,
    /// Whether a recompute stops once backward has all it needs (`torch.utils.checkpoint`, `early_stop`).
    pub early_stop: bool,
    /// Whether every thread block of a head adds up a gradient of queries of its own (FlashAttention 2's deterministic backward).
    pub copies_gradients: bool,
    /// Whether every call of attention first reads an answer back from the device (transformers' flash attention asks
    /// whether positions are packed).
    pub attention_reads_back: bool,
    /// Whether attention is FlexAttention, compiled on its own.
    pub flex_attention: bool,
    /// Whether the logits go once they are cast for the loss: no variable names them.
    pub unnamed_logits: bool,
    /// Where inputs of checkpointed blocks are kept, if not on the device.
    pub offload: Option<Offload>,
    /// Launch class of forward operators: eager, or compiled.
    pub forward: Dispatch,
    /// Launch class of backward operators.
    pub backward: Dispatch,
}
