//! Which sizes are believed: from 1 to a bound well above every published model, so that no later product overflows.
//!
//! With these bounds a model has at most 10,000 · (4 · 2^40 + 3 · 2^43) + 2 · 2^44 parameters, about 2^58.

use std::fmt;

use crate::model::layer::MOST_LAYERS;

/// A size's name and the largest value believed.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    what: &'static str,
    /// Largest value believed.
    pub most: u64,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, a whole number from 1 to {}", self.what, self.most)
    }
}

/// Blocks.
pub(super) const LAYERS: Limit = Limit { what: "the number of blocks", most: MOST_LAYERS };
/// Model width.
pub(super) const WIDTH: Limit = Limit { what: "the model's width", most: 1 << 20 };
/// Query or key-value heads.
pub(super) const HEADS: Limit = Limit { what: "a number of heads", most: 1 << 20 };
/// Head dimension.
pub(super) const HEAD_DIM: Limit = Limit { what: "the dimension of a head", most: 1 << 20 };
/// Feed-forward width.
pub(super) const FFN: Limit = Limit { what: "the feed-forward width", most: 1 << 20 };
/// Routed experts, or groups of them.
pub(super) const EXPERTS: Limit = Limit { what: "a number of experts", most: 1 << 14 };
/// Vocabulary.
pub(super) const VOCAB: Limit = Limit { what: "the vocabulary's size", most: 1 << 24 };
/// Positions, windows, and counts of layers in a pattern.
pub(super) const LENGTH: Limit = Limit { what: "a length in tokens", most: 1 << 24 };
/// `num_nextn_predict_layers`; published models have one.
pub(super) const AHEAD: Limit = Limit { what: "a number of modules that predict ahead", most: 16 };
/// Blocks in a repeating pattern.
pub(super) const PATTERN: Limit = Limit { what: "a number of blocks", most: 10_000 };
