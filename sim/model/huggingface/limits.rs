//! Which sizes are believed: from 1 to a bound well above every published model, so that no later product overflows.
//!
//! With these bounds a model has at most 10,000 · (4 · 2^40 + 3 · 2^43) + 2 · 2^44 parameters, about 2^58.

use std::fmt;

use super::keys::Keys;
use super::{ModelConfig, ModelError};

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
pub(super) const LAYERS: Limit = Limit { what: "the number of blocks", most: 2_048 };
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

/// Checks what no single key can: that heads share out among key-value heads, and that all heads together are sane.
pub(super) fn check(keys: &Keys<'_>, model: &ModelConfig) -> Result<(), ModelError> {
    if !model.heads.is_multiple_of(model.kv_heads) {
        return Err(ModelError::Misfit {
            file: keys.file(),
            left: format!("{} query heads", model.heads),
            right: format!("{} key-value heads", model.kv_heads),
            rule: "the first must be a multiple of the second",
            remedy: "check \"num_key_value_heads\"",
        });
    }
    let all = model.heads.saturating_mul(model.head_dim);
    let experts = model.experts.as_ref();
    let routed = experts.map_or(0, |experts| experts.count.saturating_mul(experts.width) / 8);
    let shared = experts.map_or(0, |experts| experts.shared);
    for (what, size) in [
        ("all heads together", all),
        ("the feed-forward", model.ffn),
        ("an eighth of all experts together", routed),
        ("all shared experts together", shared),
    ] {
        if size > WIDTH.most {
            return Err(ModelError::Misfit {
                file: keys.file(),
                left: format!("{what}, {size} wide,"),
                right: format!("the largest width believed, {},", WIDTH.most),
                rule: "the first must not exceed the second",
                remedy: "check the sizes of heads, feed-forward and experts",
            });
        }
    }
    Ok(())
}
