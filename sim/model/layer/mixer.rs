//! What mixes tokens: one variant for each way.

use super::{Attention, GatedDelta, LatentAttention, Mamba2};
use crate::model::parts::Norm;
use crate::program::Owner;

/// What mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Mixer {
    /// Attention of heads with keys and values of their own, or shared in groups.
    Attention(Attention),
    /// Attention whose keys and values come from one short vector per token.
    Latent(LatentAttention),
    /// A state-space model, scanned in chunks.
    Mamba2(Mamba2),
    /// Linear attention whose state forgets and corrects.
    GatedDelta(GatedDelta),
    /// Nothing: the layer is a feed-forward alone (Nemotron-H).
    None,
}

impl Mixer {
    /// Attention of heads, if it is that.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Latent(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None => None,
        }
    }

    /// Latent attention, if it is that.
    pub fn latent(&self) -> Option<&LatentAttention> {
        match self {
            Mixer::Latent(latent) => Some(latent),
            Mixer::Attention(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None => None,
        }
    }

    /// Mamba-2, if it is that.
    pub fn mamba(&self) -> Option<&Mamba2> {
        match self {
            Mixer::Mamba2(mamba) => Some(mamba),
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::GatedDelta(_) | Mixer::None => None,
        }
    }

    /// Whether it is attention over all tokens, or over a window of them.
    pub fn attends(&self) -> bool {
        matches!(self, Mixer::Attention(_) | Mixer::Latent(_))
    }

    /// N: query heads; of what is no attention, heads of its values.
    pub fn heads(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.heads,
            Mixer::Latent(latent) => latent.heads,
            Mixer::Mamba2(mamba) => mamba.heads,
            Mixer::GatedDelta(delta) => delta.value_heads,
            Mixer::None => 0,
        }
    }

    /// K: key-value heads; of latent attention each head has keys and values of its own.
    pub fn kv_heads(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.kv_heads,
            Mixer::Latent(latent) => latent.heads,
            Mixer::Mamba2(mamba) => mamba.heads,
            Mixer::GatedDelta(delta) => delta.value_heads,
            Mixer::None => 0,
        }
    }

    /// H: dimensions of a head's queries and keys.
    pub fn head_dim(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.head_dim,
            Mixer::Latent(latent) => latent.head_dim(),
            Mixer::Mamba2(mamba) => mamba.head_dim,
            Mixer::GatedDelta(delta) => delta.value_dim,
            Mixer::None => 0,
        }
    }

    /// Keys that each query sees, if not all before it.
    pub fn window(&self) -> Option<u64> {
        match self {
            Mixer::Attention(attention) => attention.window,
            Mixer::Latent(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None => None,
        }
    }

    /// The same mixer with another window, where it is one that may have windows.
    #[must_use]
    pub fn with_window(self, window: Option<u64>) -> Mixer {
        match self {
            Mixer::Attention(attention) => Mixer::Attention(Attention { window, ..attention }),
            same @ (Mixer::Latent(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None) => same,
        }
    }

    /// What a token's scores and weighted values are computed over, all heads together: N·H, or the mean of N·(U + R)
    /// and N·W under latent attention. Where there are no scores over all tokens: zero.
    pub fn score_width(&self) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.heads * attention.head_dim,
            Mixer::Latent(latent) => latent.heads * (latent.head_dim() + latent.value) / 2,
            Mixer::Mamba2(_) | Mixer::GatedDelta(_) | Mixer::None => 0,
        }
    }

    /// The part of the model that its operators belong to.
    pub fn owner(&self) -> Owner {
        match self {
            Mixer::Attention(_) => Owner::Attention,
            Mixer::Latent(_) => Owner::Latent,
            Mixer::Mamba2(_) => Owner::Mamba2,
            Mixer::GatedDelta(_) => Owner::GatedDelta,
            Mixer::None => Owner::Rest,
        }
    }

    /// Parameters in a model so wide, whose norms are of a kind.
    pub(super) fn params(&self, width: u64, norm: Norm) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.params(width, norm),
            Mixer::Latent(latent) => latent.params(width),
            Mixer::Mamba2(mamba) => mamba.params(width),
            Mixer::GatedDelta(delta) => delta.params(width),
            Mixer::None => 0,
        }
    }
}
