//! InternLM's own operators, as InternEvo v0.1.0 writes them around flash-attention 1.0.5 and Apex
//! (InternLM/InternEvo@e1cefaef: `internlm/model/{modeling_internlm,multi_head_attention,embedding,loss}.py`).
//!
//! Tokens of all sequences of a micro-batch lie in one row, `[T, …]`; lengths say where each begins. Their rules, forward
//! and backward, are in `runtime/eager/internlm.rs`; linears are those of [`super::megatron`].

/// One operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternLmOp {
    /// `Embedding1D`: a table split on its columns, whose parts are gathered and laid side by side. Input: tokens.
    Embed,
    /// `_dropout_and_norm_*` without dropout: a sum with the residual, a cast to fp32, Apex's `MixedFusedRMSNorm`. Inputs:
    /// the branch, the residual if it is added. Outputs: what is normed, the sum if there is one. Parameter: weight.
    Norm {
        /// Whether the residual is added first.
        adds: bool,
        /// Whether it is recomputed in backward (`dropout_selective_checkpoint`).
        recompute: bool,
    },
    /// `RotaryEmbedding`: queries and keys turned in place, in the mixed product of one linear; the host asks for the
    /// largest position first.
    Rotate,
    /// `FlashSelfAttention` over packed sequences. Input: the mixed product.
    Flash,
    /// `FlashGPTLMLoss`: flash-attn's cross-entropy on logits split on the vocabulary, whose gradient takes their place.
    Loss,
}
