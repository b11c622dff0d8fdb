//! The parts a decoder is made of.

use super::operators::Activation;
use crate::units::Finite;

/// How activations are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Norm {
    /// RMSNorm: one weight vector.
    Rms,
    /// LayerNorm: a weight vector, and a bias vector if true.
    Layer {
        /// Whether it has a bias.
        bias: bool,
    },
}

impl Norm {
    /// Parameters of one norm over so many numbers.
    pub fn params(self, dims: u64) -> u64 {
        match self {
            Norm::Rms | Norm::Layer { bias: false } => dims,
            Norm::Layer { bias: true } => 2 * dims,
        }
    }
}

/// Where norms sit in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum NormPlacement {
    /// One before attention, one before the feed-forward (Llama).
    Pre,
    /// One before and one after each (Gemma 2 and 3).
    PreAndPost,
    /// One after each, none before (OLMo 2).
    Post,
    /// Attention and feed-forward both read the block's input, each through its own norm (GPT-NeoX).
    Parallel,
    /// Attention and feed-forward share one norm of the block's input (GPT-J, Falcon 7B).
    ParallelShared,
}

impl NormPlacement {
    /// Norms over the model width in one layer.
    pub fn count(self) -> u64 {
        match self {
            NormPlacement::Pre | NormPlacement::Post | NormPlacement::Parallel => 2,
            NormPlacement::PreAndPost => 4,
            NormPlacement::ParallelShared => 1,
        }
    }
}

/// How positions enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Position {
    /// Rotary embedding on the first `dims` of each head (`dims` = H unless partial).
    Rope {
        /// Rotated dimensions of each head.
        dims: u64,
    },
    /// Linear biases on the attention scores; no parameters.
    Alibi,
    /// A learned table of `positions` vectors added to the embedding.
    Learned {
        /// Rows of the table.
        positions: u64,
    },
    /// None.
    None,
}

/// How a feed-forward makes its hidden values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Gating {
    /// `act(w1 x) · w3 x`: three matrices with the last (SwiGLU, GeGLU).
    Gated(Activation),
    /// `act(w1 x)`: two matrices with the last.
    Plain(Activation),
}

impl Gating {
    /// Its pointwise function.
    pub fn activation(self) -> Activation {
        let (Gating::Gated(activation) | Gating::Plain(activation)) = self;
        activation
    }

    /// Matrices that hidden values are made with.
    pub fn ups(self) -> u64 {
        match self {
            Gating::Gated(_) => 2,
            Gating::Plain(_) => 1,
        }
    }
}

/// Norms on queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum QkNorm {
    /// A weight of length H, applied to every head (Qwen 3, Gemma 3).
    PerHead,
    /// A weight over all heads at once (OLMo 2).
    Full,
}

/// Probabilities of dropout in training; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Dropout {
    /// On the embedding.
    pub embedding: Finite,
    /// On attention's probabilities.
    pub attention: Finite,
    /// On what attention and feed-forward add to the residual stream.
    pub residual: Finite,
}

impl Dropout {
    /// Whether anything is dropped.
    pub fn any(self) -> bool {
        [self.embedding, self.attention, self.residual].into_iter().any(|probability| probability.get() > 0.0)
    }
}
