//! Matmuls of a program that was compiled whole: the compiler makes the elementwise work around them part of them.
//!
//! On a TPU the norm's scaling is fused into the projections behind it, the gate into the one behind it, a residual into the
//! one before it; so a matmul takes longer than a bare one, and those take nothing of their own. The factor is the rate of
//! bare matmuls over that of the fusions in traces of training steps, at the same shapes.

use serde::Deserialize;

use super::basis::{Basis, Cost, Evidence};
use crate::units::Time;

/// Time over that of the bare matmuls.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fusion {
    /// Of matmuls.
    pub matmul: f64,
    /// What it rests on.
    pub evidence: Evidence,
}

impl Fusion {
    pub(super) fn check(self) -> Result<Fusion, String> {
        match (0.5..=3.0).contains(&self.matmul) {
            true => Ok(self),
            false => Err(format!("matmul is {}: expected the time over the bare matmul's, 0.5 to 3", self.matmul)),
        }
    }

    /// What a bare matmul's cost becomes.
    pub(super) fn slowed(&self, bare: Cost) -> Cost {
        Cost {
            time: Time::from_seconds(bare.time.seconds() * self.matmul),
            spread: libm::hypot(bare.spread, self.evidence.spread()),
            basis: bare.basis.and(self.evidence.basis).and(Basis::Interpolated),
        }
    }
}
