//! Where a figure comes from, and how far it may be off.
//!
//! Every answer of a [`CostModel`](super::CostModel) carries a [`Basis`] and a spread, so that a report can say what
//! share of the step rests on each kind of evidence and draw an interval around the sum. The spread is the half-width
//! of an 80 % interval; a section of a profile states the 90th percentile of its error (cross-validated, or a judgement
//! that its source explains), and for a normal error the two are 1.282 and 1.645 standard deviations:
//! spread = 0.78 × p90.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::units::Time;

/// What kind of evidence a figure rests on, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, VariantArray)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// This project timed this very point on this chip.
    Measured,
    /// A public table holds this very point, or a closed form fitted to a public table covers it.
    Published,
    /// Between points of the profile, whoever measured them.
    Interpolated,
    /// A compiler's own estimate.
    CompilerEstimate,
    /// Outside the points, on another chip, or carried over by a stated physical relation.
    Extrapolated,
    /// A roofline of vendor figures.
    Datasheet,
    /// Nobody measured it: a stated guess with a wide interval.
    Assumed,
}

impl Basis {
    /// All, in the order in which reports list them.
    pub const ALL: &[Basis] = Basis::VARIANTS;

    /// The word reports print.
    pub fn label(self) -> &'static str {
        match self {
            Basis::Measured => "measured",
            Basis::Published => "published",
            Basis::Interpolated => "interpolated",
            Basis::CompilerEstimate => "compiler estimate",
            Basis::Extrapolated => "extrapolated",
            Basis::Datasheet => "datasheet",
            Basis::Assumed => "assumed",
        }
    }

    /// The weaker of two: a figure made of several is only as good as the worst.
    pub fn and(self, other: Basis) -> Basis {
        self.max(other)
    }
}

/// A duration with its trustworthiness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// How long it takes.
    pub time: Time,
    /// Half-width of an 80 % interval, relative to the time.
    pub spread: f64,
    /// What the figure rests on.
    pub basis: Basis,
}

impl Cost {
    /// A cost from seconds; work that is not nothing takes at least one nanosecond.
    pub(super) fn new(seconds: f64, spread: f64, basis: Basis) -> Cost {
        Cost { time: Time::from_seconds(seconds.max(1e-9)), spread, basis }
    }

    /// No work, no time.
    pub(super) const NOTHING: Cost = Cost { time: Time::ZERO, spread: 0.0, basis: Basis::Measured };
}

/// What a section of a profile rests on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Kind of evidence.
    pub basis: Basis,
    /// Who measured it, where, with which software.
    pub source: String,
    /// Number of points behind the section.
    pub points: u32,
    /// Median relative error, by cross-validation where there are points enough, else a stated judgement.
    pub median: f64,
    /// 90th percentile of the relative error.
    pub p90: f64,
}

impl Evidence {
    /// Half-width of an 80 % interval.
    pub fn spread(&self) -> f64 {
        0.78 * self.p90
    }

    /// A cost that this section's closed form covers.
    pub(super) fn cost(&self, seconds: f64) -> Cost {
        Cost::new(seconds, self.spread(), self.basis)
    }

    /// A cost beyond what this section covers: twice the spread.
    pub(super) fn beyond(&self, seconds: f64) -> Cost {
        Cost::new(seconds, 2.0 * self.spread(), self.basis.and(Basis::Extrapolated))
    }

    /// A cost between this section's points.
    pub(super) fn between(&self, seconds: f64) -> Cost {
        Cost::new(seconds, self.spread(), self.basis.and(Basis::Interpolated))
    }
}
