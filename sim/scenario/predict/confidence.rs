//! How much a predicted step time is worth, in a word: by the width of its interval, and by nothing else.
//!
//! Of public measured runs, each judged without its family, those of a better word are off by less, in the median and in nine of ten
//! (`witnesses/tests.rs`).

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::units::Time;

/// Half the width of an interval around a step, as a share of the step.
pub fn half_width(step: Time, (low, high): (Time, Time)) -> f64 {
    0.5 * (high.seconds() - low.seconds()) / step.seconds().max(f64::MIN_POSITIVE)
}

/// How much a step time is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, Serialize, Deserialize)]
pub enum Confidence {
    /// The 80 % interval is at most 8 % to either side, in the mean.
    High,
    /// At most 12 %.
    Fair,
    /// At most 20 %.
    Low,
    /// More: good for an order of magnitude, not for a choice.
    Poor,
}

impl Confidence {
    /// All, the best first.
    pub const ALL: &[Confidence] = Confidence::VARIANTS;

    /// Of an 80 % interval around a step.
    pub fn of(step: Time, interval: (Time, Time)) -> Confidence {
        let half = half_width(step, interval);
        let reaches = |confidence: &&Confidence| half <= confidence.half();
        Confidence::ALL.iter().find(reaches).copied().unwrap_or(Confidence::Poor)
    }

    /// Half the width of the widest interval of this word, as a share of the step.
    pub fn half(self) -> f64 {
        match self {
            Confidence::High => 0.08,
            Confidence::Fair => 0.12,
            Confidence::Low => 0.20,
            Confidence::Poor => f64::INFINITY,
        }
    }

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Confidence::High => "high",
            Confidence::Fair => "fair",
            Confidence::Low => "low",
            Confidence::Poor => "poor",
        }
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_interval_is_worth_less() {
        let of = |half: f64| {
            let at = Time::from_seconds;
            Confidence::of(at(1.0), (at(1.0 - half), at(1.0 + half)))
        };
        assert_eq!(
            [0.05, 0.1, 0.15, 0.5].map(of),
            [Confidence::High, Confidence::Fair, Confidence::Low, Confidence::Poor]
        );
    }
}
