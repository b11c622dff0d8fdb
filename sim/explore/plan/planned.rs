//! A plan that was simulated and fits: the figures that an answer shows.

use super::candidate::Candidate;
use crate::engine::Breakdown;
use crate::scenario::predict::Floor;
use crate::scenario::{Prediction, Scenario};
use crate::units::{Bytes, Time};

/// A plan that was simulated and fits.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its framework and keys.
    pub candidate: Candidate,
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
    pub convention: &'static str,
    /// What bounds the step.
    pub bound: &'static str,
    /// Where the step went: the mean of all ranks.
    pub breakdown: Breakdown,
    /// What the fullest device holds \[B\].
    pub memory: Bytes,
    /// What a device has \[B\].
    pub capacity: Bytes,
    /// Whether it fits however far the total is off.
    pub sure: bool,
    /// Of the fullest device's allocator, by category, largest first \[B\].
    pub held: Vec<(&'static str, Bytes)>,
    /// Of it, what lives outside the allocator \[B\].
    pub outside: Bytes,
    /// Replicas of the model that read data of their own.
    pub replicas: u64,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// What it needed at least, by its bounds.
    pub floor: Floor,
}

impl Planned {
    pub(super) fn of(candidate: Candidate, scenario: &Scenario, answer: &Prediction, floor: Floor) -> Planned {
        let memory = &answer.memory;
        let sequences = answer.tokens / scenario.job.seq().max(1);
        let micro_batches = scenario.job.micro_batches();
        let each = scenario.job.batch() * u64::from(micro_batches);
        Planned {
            candidate,
            step: answer.step,
            interval: answer.interval,
            tokens: answer.tokens,
            rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
            mfu: answer.mfu.first().map_or(0.0, |mfu| mfu.utilisation),
            convention: answer.mfu.first().map_or("", |mfu| mfu.formula),
            bound: answer.bound(),
            breakdown: answer.breakdown,
            memory: memory.device_total(),
            capacity: memory.capacity,
            sure: memory.fits_beyond_doubt(),
            held: memory.report.breakdown.sorted().into_iter().map(|(kind, bytes)| (kind.label(), bytes)).collect(),
            outside: memory.outside,
            replicas: sequences / each.max(1),
            micro_batches,
            floor,
        }
    }

    /// What stays free on the fullest device \[B\].
    pub fn headroom(&self) -> Bytes {
        self.capacity.saturating_sub(self.memory)
    }
}
