//! One layer of a decoder: what mixes tokens, what follows on each token alone, and the norms around both.
//!
//! Layers that are alike are of one kind, and a model is a list of kinds ([`Layers`]). To add a mixer: a file here and a
//! variant of [`Mixer`]; the compiler then asks for its sizes, its parameters and its operators.

mod attention;
mod delta;
mod dense;
mod latent;
mod list;
mod mamba2;
mod mixer;
#[cfg(test)]
mod tests;

pub use attention::Attention;
pub use delta::GatedDelta;
pub use dense::Dense;
pub use latent::LatentAttention;
pub use list::{KindId, Layers, MOST_LAYERS, stand_together};
pub use mamba2::Mamba2;
pub use mixer::Mixer;

use super::experts::Experts;
use super::parts::{Gating, Norm, NormPlacement};
use crate::program::Owner;

/// A layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Layer {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// What follows on each token alone.
    pub feed_forward: FeedForward,
    /// The norms over the model width.
    pub norms: Norms,
}

/// What follows on each token alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum FeedForward {
    /// One network that all tokens pass.
    Dense(Dense),
    /// Many, of which a router picks a few for each token.
    Experts(Experts),
    /// Nothing: the layer is a mixer alone (Mamba-2, Nemotron-H).
    None,
}

/// The norms over the model width in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Norms {
    /// Their kind, which norms of queries and keys have, too.
    pub kind: Norm,
    /// Where they sit.
    pub placement: NormPlacement,
}

impl FeedForward {
    /// How its hidden values are made: of every expert, where there are some; none if there is no feed-forward.
    pub fn gating(&self) -> Option<Gating> {
        match self {
            FeedForward::Dense(dense) => Some(dense.gating),
            FeedForward::Experts(experts) => Some(experts.gating),
            FeedForward::None => None,
        }
    }

    /// The part of the model that its operators belong to.
    pub fn owner(&self) -> Owner {
        match self {
            FeedForward::Dense(_) => Owner::Dense,
            FeedForward::Experts(_) => Owner::Experts,
            FeedForward::None => Owner::Rest,
        }
    }

    /// Parameters in a model so wide: all, and those that one token meets.
    fn params(&self, width: u64) -> (u64, u64) {
        match self {
            FeedForward::Dense(dense) => {
                let all = dense.params(width);
                (all, all)
            }
            FeedForward::Experts(experts) => experts.params(width),
            FeedForward::None => (0, 0),
        }
    }
}

impl Layer {
    /// Its experts, if it has some.
    pub fn experts(&self) -> Option<&Experts> {
        match &self.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::Dense(_) | FeedForward::None => None,
        }
    }

    /// Its dense feed-forward, if it has one.
    pub fn dense(&self) -> Option<&Dense> {
        match &self.feed_forward {
            FeedForward::Dense(dense) => Some(dense),
            FeedForward::Experts(_) | FeedForward::None => None,
        }
    }

    /// Keys that each query sees, if not all before it.
    pub fn window(&self) -> Option<u64> {
        self.mixer.window()
    }

    /// Whether it multiplies what attention or shared experts make by a gate.
    pub fn has_gate(&self) -> bool {
        self.mixer.attention().is_some_and(|attention| attention.output_gate)
            || self.experts().is_some_and(|experts| experts.shared_gate)
    }

    /// Parameters in a model so wide: all, and those that one token meets.
    pub fn params(&self, width: u64) -> (u64, u64) {
        let [mixer, feed_forward] = self.halves(width);
        (mixer.0 + feed_forward.0, mixer.1 + feed_forward.1)
    }

    /// The same of its mixer and of its feed-forward, each with the norms around it. A norm that both share is the mixer's.
    pub fn halves(&self, width: u64) -> [(u64, u64); 2] {
        let Norms { kind, placement } = self.norms;
        let (mixes, feeds) = (self.mixer != Mixer::None, self.feed_forward != FeedForward::None);
        // A layer of one part has the norms of one.
        let norms = placement.count() * (u64::from(mixes) + u64::from(feeds)) / 2;
        let own = if feeds { norms - norms / 2 } else { norms };
        let own = if mixes { own } else { 0 };
        let mixer = self.mixer.params(width, kind) + own * kind.params(width);
        let (all, met) = self.feed_forward.params(width);
        let around = (norms - own) * kind.params(width);
        [(mixer, mixer), (around + all, around + met)]
    }
}
