//! Attention of heads with keys and values of their own, or shared in groups.

use crate::model::parts::{Norm, QkNorm};

/// Attention: N query heads on K key-value heads, H numbers each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Attention {
    /// N: query heads.
    pub heads: u64,
    /// K: key-value heads.
    pub kv_heads: u64,
    /// H: head dimension.
    pub head_dim: u64,
    /// Keys each query may see; none: all.
    pub window: Option<u64>,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the output.
    pub output_bias: bool,
    /// One matrix for q, k and v (GPT-2, NeoX, MPT) instead of three.
    pub fused_qkv: bool,
    /// Norms on queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// A learned number per head beside the scores, which no value answers to (GPT-OSS).
    pub sinks: bool,
    /// `cap·tanh(x/cap)` on the scores (Gemma 2).
    pub softcap: bool,
    /// What attention makes is multiplied by the sigmoid of as many numbers, which come from the queries' projection (Qwen3-Next).
    pub output_gate: bool,
}

impl Attention {
    /// So many heads of so many numbers, with keys and values of their own, and nothing else.
    pub fn plain(heads: u64, head_dim: u64) -> Attention {
        Attention {
            heads,
            kv_heads: heads,
            head_dim,
            window: None,
            qkv_bias: false,
            output_bias: false,
            fused_qkv: false,
            qk_norm: None,
            sinks: false,
            softcap: false,
            output_gate: false,
        }
    }

    /// Parameters in a model so wide, whose norms of queries and keys are of a kind.
    pub(super) fn params(&self, d: u64, norm: Norm) -> u64 {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let norms = match self.qk_norm {
            None => 0,
            Some(QkNorm::PerHead) => 2 * norm.params(self.head_dim),
            Some(QkNorm::Full) => norm.params(q) + norm.params(kv),
        };
        let qkv_bias = if self.qkv_bias { q + 2 * kv } else { 0 };
        let output_bias = if self.output_bias { d } else { 0 };
        let sinks = if self.sinks { self.heads } else { 0 };
        let gate = if self.output_gate { d * q + if self.qkv_bias { q } else { 0 } } else { 0 };
        gate + d * (q + 2 * kv) + q * d + qkv_bias + output_bias + norms + sinks
    }
}
