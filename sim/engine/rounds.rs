//! What is kept of a round of micro-batches, to see whether the next one repeats it (`leap.rs`), and rounds that are run without being
//! written.

use std::ops::Range;

use super::plan::Plan;
use super::spent::Totals;
use super::{Busy, Options};
use crate::program::{Owner, Program};
use crate::units::{Flops, Time};

/// Rounds that others are like: by step, class and stream, the operations of one.
pub(super) type Like = Vec<Vec<Vec<Range<usize>>>>;

/// Looks for a round that repeats the one before.
#[derive(Default)]
pub(super) struct Rounds {
    /// Where to look next, by step and operation of the first rank's default stream; none where nobody looks.
    pub(super) place: Option<(u32, u32)>,
    /// What was found when the round before began.
    pub(super) found: Option<Found>,
    /// Rounds that each step has beyond those that are written.
    pub(super) further: u32,
    /// In how many steps they were run.
    pub(super) added: u32,
    /// By step: where each actor was when the round that they were run like began, and when it was over.
    pub(super) run_like: Vec<(Vec<u32>, Vec<u32>)>,
    /// What each of them launches, by class.
    pub(super) each: Vec<Round>,
}

/// How often one rank launches each kernel, collective and exchange in a round, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Kernels.
    pub kernels: Vec<u64>,
    /// Collectives.
    pub comms: Vec<u64>,
    /// Exchanges.
    pub exchanges: Vec<u64>,
    /// FLOPs of each part of the model ([`Owner::ALL`]).
    pub flops: [Flops; Owner::COUNT],
    /// What the host pays for it \[ps\].
    pub host: Time,
}

impl Round {
    /// Nothing of a program.
    pub(super) fn none_of(program: &Program) -> Round {
        Round {
            kernels: vec![0; program.kernels.len()],
            comms: vec![0; program.comms.len()],
            exchanges: vec![0; program.exchanges.len()],
            flops: [Flops(0); Owner::COUNT],
            host: Time::ZERO,
        }
    }
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
        Rounds { place: first.map(|&at| (0, at)), found: None, further: 0, added: 0, run_like: vec![], each: vec![] }
    }

    /// Whether further rounds were wanted in a step before this one, and were not run in it.
    pub(super) fn missed(&self, step: u32) -> bool {
        self.further > 0 && self.added < step
    }

    /// Whether further rounds are wanted in a step and were not run in it.
    pub(super) fn wanted(&self, step: u32) -> bool {
        self.further > 0 && self.added == step
    }
}
