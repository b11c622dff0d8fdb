//! Every measured run, judged by all others but its family.

use super::super::confidence::Confidence;
use super::{WITNESSES, Witness, ends, miss, seen_without};
use crate::units::Time;

/// A run of the file, with the interval that is made without its family: logarithms of measured over predicted.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub(super) run: &'static Witness,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Held {
    /// All of them.
    pub fn all() -> Vec<Held> {
        let held = |run: &'static Witness| {
            let (low, high) = ends(&seen_without(|other| other.family == run.family), &run.reasons, &run.kind);
            Held { run, low, high }
        };
        WITNESSES.iter().map(held).collect()
    }

    /// Whether the measured step lies in the interval.
    pub fn holds(&self) -> bool {
        (self.low..=self.high).contains(&self.run.error)
    }

    /// How much the predicted step is said to be worth.
    pub fn confidence(&self) -> Confidence {
        let at = |log: f64| Time::from_seconds(libm::exp(log));
        Confidence::of(at(0.0), (at(self.low), at(self.high)))
    }

    /// Predicted over measured less one.
    pub fn miss(&self) -> f64 {
        miss(self.run.error)
    }

    /// One over the runs of its configuration.
    pub fn weight(&self) -> f64 {
        self.run.weight
    }
}
