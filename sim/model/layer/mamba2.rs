//! Mamba-2: a state-space model whose scan runs chunk by chunk (SSD, arXiv 2405.21060).
//!
//! ```text
//! z, xBC, dt = in_proj x                     P = 2·N·H + 2·G·Z + N numbers per token, N heads of H, G groups of state size Z
//! x, B, C    = silu(conv1d(xBC))             over each channel's last few tokens
//! y          = SSD(x, dt, A, B, C) + D·x
//! out        = out_proj(norm(y · silu(z)))
//! ```

/// A Mamba-2 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Mamba2 {
    /// N: heads.
    pub heads: u64,
    /// H: dimensions of a head.
    pub head_dim: u64,
    /// G: groups of heads that share B and C.
    pub groups: u64,
    /// Z: numbers of state for each dimension of a head.
    pub state: u64,
    /// Tokens that the convolution sees.
    pub conv: u64,
    /// Tokens of a chunk of the scan.
    pub chunk: u64,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether both projections have biases.
    pub bias: bool,
}

impl Mamba2 {
    /// N·H: width inside.
    pub fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: x, B and C.
    pub fn channels(&self) -> u64 {
        self.inner() + 2 * self.groups * self.state
    }

    /// P: numbers that the first projection makes of each token.
    pub fn projected(&self) -> u64 {
        self.inner() + self.channels() + self.heads
    }

    /// What one of so many tensor-parallel ranks has of it: heads and groups.
    #[must_use]
    pub fn split(self, ranks: u64) -> Mamba2 {
        Mamba2 { heads: self.heads / ranks, groups: self.groups / ranks, ..self }
    }

    /// What one of so many ranks that exchange tokens for heads scans: where there are fewer groups than ranks, each rank has a copy of
    /// its heads' (Megatron-Core 0.16.1, `core/ssm/mamba_context_parallel.py`).
    #[must_use]
    pub fn shared(self, ranks: u64) -> Mamba2 {
        Mamba2 { heads: self.heads / ranks, groups: (self.groups / ranks).max(1), ..self }
    }

    /// Parameters in a model so wide: projections, convolution; dt's bias, A and D of each head; the gated norm.
    pub(super) fn params(&self, d: u64) -> u64 {
        let biases = if self.bias { self.projected() + d } else { 0 };
        let conv = self.channels() * (self.conv + u64::from(self.conv_bias));
        d * (self.projected() + self.inner()) + biases + conv + 3 * self.heads + self.inner()
    }
}
