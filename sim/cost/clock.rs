//! How far a busy board falls below its burst clocks once it reaches its power limit.
//!
//! Tables of matmul times are taken in bursts: a short kernel runs at boost clocks, a long one (tens of milliseconds)
//! has throttled already while it was timed. Training never stops, so every power-hungry kernel runs throttled: its
//! rate is the burst rate times a factor, given over the kernel's own burst duration. A kernel that keeps the tensor
//! cores busy for a share `u` of its time is slowed in that share only: `time = burst · (1 + (1/factor − 1)·u)`; for
//! attention `u` is its rate over the tensor cores' peak, and the factor is its own where one was measured.
//! Where a board's limit is below the limit the points were measured at, `scale` or [`under`] multiplies the factor; dynamic power
//! goes as f·V², and V rises almost in step with f, so f goes as about `power^(1/2.5)`, between a square and a cube. A profile without
//! the section answers alike for both regimes.

use serde::Deserialize;

use super::basis::{Basis, Evidence};
use crate::program::DType;
use crate::units::{Power, Time};

/// What a board draws beside its processors' clocks, idle and for its memory, as a share of its limit: 120 W of 700 (assumed).
const IDLE: f64 = 120.0 / 700.0;

/// Dynamic power goes as clocks to this, between a square and a cube.
pub(super) const LAW: f64 = 2.5;

/// The least of its own power that a board takes as a limit: 200 of 700 W (`AllowableMin`, docs.nvidia.com/dgx, Managing Power Capping).
pub const LEAST_LIMIT: f64 = 200.0 / 700.0;

/// Clocks of a board under a power limit over those under its own; the limit is [`LEAST_LIMIT`] of that or more.
pub fn under(limit: Power, own: Power) -> f64 {
    by(limit, own, LAW)
}

/// By how much that is off, relative: how far a square and a cube law lie from each other.
pub(super) fn doubt(limit: Power, own: Power) -> f64 {
    (by(limit, own, 3.0) - by(limit, own, 2.0)) / under(limit, own)
}

fn by(limit: Power, own: Power, law: f64) -> f64 {
    let dynamic = (limit.0 / own.0 - IDLE) / (1.0 - IDLE);
    libm::pow(dynamic, 1.0 / law)
}

/// The section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    evidence: Evidence,
    matmul: Vec<Point>,
    fp8: Vec<Point>,
    attention: Option<f64>,
    scale: f64,
}

/// Sustained over burst rate of a kernel with the given burst duration.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Point {
    burst: Time,
    factor: f64,
}

/// Sustained over burst clocks.
#[derive(Clone, Debug)]
pub struct Clock {
    /// What the section rests on.
    pub evidence: Evidence,
    /// Whether the points were measured under a higher limit than the board's.
    pub(super) scaled: bool,
    /// Burst duration [log s] and factor, rising in duration.
    matmul: Vec<(f64, f64)>,
    /// The same for fp8.
    fp8: Vec<(f64, f64)>,
    /// The factor of fused attention, where it was measured.
    attention: Option<f64>,
}

impl Clock {
    pub(super) fn new(written: Written) -> Result<Clock, String> {
        let points = written.matmul.iter().chain(&written.fp8);
        let factors = points.map(|p| p.factor).chain(written.attention).chain([written.scale]);
        if let Some(bad) = factors.into_iter().find(|f| !(0.1..=1.0).contains(f)) {
            return Err(format!("a clock factor is {bad}: expected a share of the burst rate between 0.1 and 1"));
        }
        let understand = |points: &[Point]| {
            if points.is_empty() || points.iter().any(|p| p.burst == Time::ZERO) {
                return Err("clock.matmul and clock.fp8 need a point each, with a burst duration above zero".to_owned());
            }
            let log = |p: &Point| (libm::log(p.burst.seconds()), p.factor * written.scale);
            let mut points: Vec<(f64, f64)> = points.iter().map(log).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Ok(points)
        };
        let (matmul, fp8) = (understand(&written.matmul)?, understand(&written.fp8)?);
        let attention = written.attention.map(|factor| factor * written.scale);
        Ok(Clock { evidence: written.evidence, scaled: written.scale < 1.0, matmul, fp8, attention })
    }

    /// The same on a board that falls further below its bursts, by a factor.
    pub(super) fn slower(&mut self, factor: f64) {
        self.matmul.iter_mut().chain(&mut self.fp8).for_each(|point| point.1 *= factor);
        self.attention = self.attention.map(|own| own * factor);
    }

    /// A chip of which no clocks are known: it runs as it was measured.
    pub(super) fn steady() -> Clock {
        let source = "no clocks are known: sustained as measured".to_owned();
        let evidence = Evidence { basis: Basis::Measured, source, points: 0, median: 0.0, p90: 0.0 };
        Clock { evidence, scaled: false, matmul: vec![(0.0, 1.0)], fp8: vec![(0.0, 1.0)], attention: None }
    }

    /// The factor of attention, where it was measured.
    pub fn factor_of_attention(&self) -> Option<f64> {
        self.attention
    }

    /// Sustained time \[s\] of an attention kernel that takes `seconds` in a burst and keeps the tensor cores busy for `share` of it.
    pub fn attention(&self, seconds: f64, share: f64, dtype: DType) -> f64 {
        throttled(seconds, share, self.attention.unwrap_or_else(|| self.matmul(seconds, dtype)))
    }

    /// Sustained over burst rate of a matmul that takes `seconds` in a burst.
    pub fn matmul(&self, seconds: f64, dtype: DType) -> f64 {
        let points = if dtype == DType::Fp8 { &self.fp8 } else { &self.matmul };
        let x = libm::log(seconds.max(1e-9));
        let after = points.partition_point(|&(at, _)| at <= x);
        match (after.checked_sub(1), points.get(after)) {
            (None, _) => points[0].1,
            (Some(last), None) => points[last].1,
            (Some(before), Some(&(x1, f1))) => {
                let (x0, f0) = points[before];
                f0 + (f1 - f0) * (x - x0) / (x1 - x0).max(1e-9)
            }
        }
    }
}

/// Burst time of a kernel that keeps the tensor cores busy for `share` of it, at a clock factor.
pub(super) fn throttled(seconds: f64, share: f64, factor: f64) -> f64 {
    seconds * (1.0 + (1.0 / factor - 1.0) * share)
}
