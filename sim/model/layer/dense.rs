//! The feed-forward network that all tokens pass.

use crate::model::parts::Gating;

/// A dense feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Dense {
    /// F: numbers of its hidden values.
    pub width: u64,
    /// How those are made.
    pub gating: Gating,
    /// Biases on all of its linears.
    pub bias: bool,
}

impl Dense {
    /// Parameters in a model so wide.
    pub(super) fn params(&self, d: u64) -> u64 {
        let (f, ups) = (self.width, self.gating.ups());
        (ups + 1) * d * f + if self.bias { ups * f + d } else { 0 }
    }
}
