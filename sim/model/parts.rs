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

/// The feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum FeedForward {
    /// `w2(act(w1 x) · w3 x)`: three matrices (SwiGLU, GeGLU).
    Gated(Activation),
    /// `w2(act(w1 x))`: two matrices.
    Plain(Activation),
}

impl FeedForward {
    /// Its pointwise function.
    pub fn activation(self) -> Activation {
        let (FeedForward::Gated(activation) | FeedForward::Plain(activation)) = self;
        activation
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
