//! A change that was simulated, and how far an answer moves with it.

use crate::scenario::predict::{Prediction, Settings, predict, predict_beside};
use crate::scenario::{Change, Scenario};
use crate::units::{Bytes, Time};

/// A change, and what the run would do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// The change, as lines of the scenario.
    pub change: String,
    /// The step \[ps\].
    pub step: Time,
    /// Tokens of a step.
    pub tokens: u64,
    /// Tokens per second and chip.
    pub rate: f64,
    /// What the fullest device holds, or would have to.
    pub device_total: Bytes,
    /// Whether the plan fits.
    pub fits: bool,
    /// Whether it does beyond doubt.
    pub sure: bool,
}

/// A default, and how far the answer moves with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The default, as a line of the scenario.
    pub default: String,
    /// The other value that moves the answer most.
    pub other: Tried,
    /// By how much tokens per second change with it, as a share.
    pub rate: f64,
    /// By how much the fullest device's memory changes with it.
    pub memory: f64,
}

impl Moved {
    pub(super) fn by(before: &Tried, default: String, other: Tried) -> Moved {
        let change = |after: f64, before: f64| after / before - 1.0;
        let rate = change(other.rate, before.rate);
        let memory = change(other.device_total.0 as f64, before.device_total.0 as f64);
        Moved { default, other, rate, memory }
    }

    /// How far the answer moves, as a share.
    pub(super) fn most(&self) -> f64 {
        self.rate.abs().max(self.memory.abs())
    }
}

impl Tried {
    pub(super) fn of(change: String, scenario: &Scenario, answer: &Prediction) -> Tried {
        let memory = &answer.memory;
        Tried {
            change,
            step: answer.step,
            tokens: answer.tokens,
            rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
            device_total: if memory.on_device { memory.device_total() } else { memory.wanted },
            fits: !memory.refused(),
            sure: memory.fits_beyond_doubt(),
        }
    }
}

/// What the run would do with a change, beside the run without it; none if the scenario's own checks refuse it.
pub(super) fn tried_beside((scenario, answer): (&Scenario, &Prediction), change: &Change) -> Option<Tried> {
    let read = scenario.draft.changed(change).tried(None).ok()?;
    let said = change.to_string();
    let other = predict_beside(&read, (scenario, answer)).ok()?;
    Some(match &other {
        Some(other) => Tried::of(said, &read, other),
        None => Tried::of(said, scenario, answer),
    })
}

/// The run with a change; none if the scenario's own checks refuse it.
pub(crate) fn tried(scenario: &Scenario, change: &Change) -> Option<(Scenario, Prediction, Tried)> {
    let read = scenario.draft.changed(change).tried(None).ok()?;
    let settings = Settings { remedies: false, ..Settings::default() };
    let answer = predict(&read, settings).ok()?;
    let tried = Tried::of(change.to_string(), &read, &answer);
    Some((read, answer, tried))
}
