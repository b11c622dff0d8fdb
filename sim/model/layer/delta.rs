//! Gated DeltaNet: linear attention whose state forgets, and corrects what it holds for a key (arXiv 2412.06464).
//!
//! Sizes and parameters are those of Qwen3-Next (`Qwen3NextGatedDeltaNet` of transformers 5.17): queries and keys of few heads,
//! values of more, a short convolution over all three, a norm per value head that a fourth projection gates.

/// A gated DeltaNet mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct GatedDelta {
    /// Heads of queries and keys.
    pub key_heads: u64,
    /// Dimensions of each.
    pub key_dim: u64,
    /// Heads of values.
    pub value_heads: u64,
    /// Dimensions of each.
    pub value_dim: u64,
    /// Tokens that the convolution sees.
    pub conv: u64,
}

impl GatedDelta {
    /// Dimensions of queries, or of keys, of all heads.
    pub fn keys(&self) -> u64 {
        self.key_heads * self.key_dim
    }

    /// Dimensions of values of all heads.
    pub fn values(&self) -> u64 {
        self.value_heads * self.value_dim
    }

    /// Channels that the convolution runs over: queries, keys and values.
    pub fn channels(&self) -> u64 {
        2 * self.keys() + self.values()
    }

    /// Columns of the first projection: queries, keys, values and the gate.
    pub fn projected(&self) -> u64 {
        self.channels() + self.values()
    }

    /// Parameters in a model so wide: projections to q, k, v and the gate, and to two numbers per value head; the convolution;
    /// a bias and a decay of each value head; the norm of a head; the output.
    pub(super) fn params(&self, d: u64) -> u64 {
        let projections = d * (self.projected() + 2 * self.value_heads) + self.values() * d;
        projections + self.conv * self.channels() + 2 * self.value_heads + self.value_dim
    }
}
