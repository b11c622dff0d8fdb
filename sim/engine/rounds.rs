//! What is kept of a round of micro-batches, to see whether the next one repeats it (`leap.rs`).

use super::plan::Plan;
use super::spent::Totals;
use super::{Busy, Options};

/// Looks for a round that repeats the one before.
#[derive(Default)]
pub(super) struct Rounds {
    /// Where to look next, by step and operation of the first rank's default stream; none where nobody looks.
    pub(super) place: Option<(u32, u32)>,
    /// What was found when the round before began.
    pub(super) found: Option<Found>,
}

/// The state at the beginning of a round, with what had come before.
pub(super) struct Found {
    pub(super) round: usize,
    pub(super) step: u32,
    pub(super) now: u64,
    pub(super) state: Vec<u64>,
    /// How far each actor had come.
    pub(super) places: Vec<u32>,
    /// The slots of each rank of which all before had been seen.
    pub(super) seen: Vec<u32>,
    pub(super) totals: Totals,
    pub(super) busy: Vec<Busy>,
}

impl Rounds {
    /// `first`: the plan of the first rank.
    pub(super) fn new(first: Option<&Plan>, options: Options) -> Rounds {
        let first = first.and_then(|plan| plan.rounds.first()).filter(|_| !options.record);
        Rounds { place: first.map(|&at| (0, at)), found: None }
    }
}
