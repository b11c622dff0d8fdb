//! What mixes tokens: one variant for each way.

use super::{Attention, LatentAttention};
use crate::model::parts::Norm;

/// What mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Mixer {
    /// Attention of heads with keys and values of their own, or shared in groups.
    Attention(Attention),
    /// Attention whose keys and values come from one short vector per token.
    Latent(LatentAttention),
}

impl Mixer {
    /// Attention of heads, if it is that.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Latent(_) => None,
        }
    }

    /// Latent attention, if it is that.
    pub fn latent(&self) -> Option<&LatentAttention> {
        match self {
            Mixer::Latent(latent) => Some(latent),
            Mixer::Attention(_) => None,
        }
    }

    /// N: query heads.
    pub fn heads(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.heads,
            Mixer::Latent(latent) => latent.heads,
        }
    }

    /// K: key-value heads; of latent attention each head has keys and values of its own.
    pub fn kv_heads(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.kv_heads,
            Mixer::Latent(latent) => latent.heads,
        }
    }

    /// H: dimensions of a head's queries and keys.
    pub fn head_dim(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.head_dim,
            Mixer::Latent(latent) => latent.head_dim(),
        }
    }

    /// Keys that each query sees, if not all before it.
    pub fn window(&self) -> Option<u64> {
        match self {
            Mixer::Attention(attention) => attention.window,
            Mixer::Latent(_) => None,
        }
    }

    /// The same mixer with another window, where it is one that may have windows.
    #[must_use]
    pub fn with_window(self, window: Option<u64>) -> Mixer {
        match self {
            Mixer::Attention(attention) => Mixer::Attention(Attention { window, ..attention }),
            Mixer::Latent(latent) => Mixer::Latent(latent),
        }
    }

    /// What a token's scores and weighted values are computed over, all heads together: N·H, or the mean of N·(U + R)
    /// and N·W under latent attention.
    pub fn score_width(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.heads * attention.head_dim,
            Mixer::Latent(latent) => latent.heads * (latent.head_dim() + latent.value) / 2,
        }
    }

    /// Parameters in a model so wide, whose norms are of a kind.
    pub(super) fn params(&self, width: u64, norm: Norm) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.params(width, norm),
            Mixer::Latent(latent) => latent.params(width),
        }
    }
}
