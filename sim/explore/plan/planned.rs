//! A plan that was simulated and fits, and the figures of it that an answer shows.

use super::candidate::Candidate;
use super::wire::Wire;
use crate::engine::Breakdown;
use crate::scenario::predict::Floor;
use crate::scenario::{Prediction, Scenario};
use crate::units::{Bytes, Time};

/// A plan that was simulated and fits.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its framework and keys.
    pub candidate: Candidate,
    /// What it needed at least, by its bounds.
    pub floor: Floor,
    /// Its figures.
    pub figures: Figures,
}

impl std::ops::Deref for Planned {
    type Target = Figures;

    fn deref(&self) -> &Figures {
        &self.figures
    }
}

/// What a simulation says of a plan that fits. It is written down and read back without loss, so that plans may be simulated elsewhere.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct Figures {
    /// The steady step \[ps\].
    pub step: Time,
    /// An 80 % interval around it \[ps\].
    pub interval: (Time, Time),
    /// Tokens of a step of the whole job.
    pub tokens: u64,
    /// Tokens per second and chip.
    pub rate: f64,
    /// MFU by the report's first convention, 0 to 1.
    pub mfu: f64,
    /// That convention.
    pub convention: String,
    /// What bounds the step.
    pub bound: String,
    /// Where the step went: the mean of all ranks.
    pub breakdown: Breakdown,
    /// What the fullest device holds \[B\].
    pub memory: Bytes,
    /// What a device has \[B\].
    pub capacity: Bytes,
    /// Whether it fits however far the total is off.
    pub sure: bool,
    /// Of the fullest device's allocator, by category, largest first \[B\].
    pub held: Vec<(String, Bytes)>,
    /// Of it, what lives outside the allocator \[B\].
    pub outside: Bytes,
    /// Replicas of the model that read data of their own.
    pub replicas: u64,
    /// Micro-batches of a step.
    pub micro_batches: u32,
}

impl Figures {
    pub(super) fn of(scenario: &Scenario, answer: &Prediction) -> Figures {
        let memory = &answer.memory;
        let sequences = answer.tokens / scenario.job.seq().max(1);
        let micro_batches = scenario.job.micro_batches();
        let each = scenario.job.batch() * u64::from(micro_batches);
        let held = memory.report.breakdown.sorted().into_iter();
        Figures {
            step: answer.step,
            interval: answer.interval,
            tokens: answer.tokens,
            rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
            mfu: answer.mfu.first().map_or(0.0, |mfu| mfu.utilisation),
            convention: answer.mfu.first().map_or(String::new(), |mfu| mfu.formula.to_owned()),
            bound: answer.bound().to_owned(),
            breakdown: answer.breakdown,
            memory: memory.device_total(),
            capacity: memory.capacity,
            sure: memory.fits_beyond_doubt(),
            held: held.map(|(kind, bytes)| (kind.label().to_owned(), bytes)).collect(),
            outside: memory.outside,
            replicas: sequences / each.max(1),
            micro_batches,
        }
    }

    /// What stays free on the fullest device \[B\].
    pub fn headroom(&self) -> Bytes {
        self.capacity.saturating_sub(self.memory)
    }
}
