//! Where a run's state is looked at, and what is kept of it, to see whether a step repeats the one before (`steady.rs`).

use std::collections::VecDeque;

use super::flights::Exchanges;
use super::parts::{Actor, Event, Meeting, Passed, Rank};
use super::plan::Plan;
use super::spent::{Exposed, Totals};
use super::{Busy, EventQueue, Options};

/// Places at which states are compared, and at which one is kept, in parts of the default stream's operations. Looking costs
/// little: in a pipeline of 16 stages the eighth state still differs and the ninth does not.
pub(super) const EARLY: [u32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
pub(super) const LATE: [u32; 3] = [24, 28, 31];
const PARTS: u32 = 32;

/// Looks for a step that repeats the one before.
pub(super) struct Watch {
    /// Places to look at, by step and operation.
    pub(super) places: Vec<(u32, u32)>,
    pub(super) next: usize,
    /// What was found at the early places of the first step.
    pub(super) found: Vec<Option<Found>>,
    pub(super) kept: Option<Kept>,
}

/// The state at a place, with what had come before.
pub(super) struct Found {
    pub(super) now: u64,
    pub(super) state: Vec<u64>,
    pub(super) totals: Totals,
    pub(super) busy: Vec<Busy>,
    pub(super) marks: Vec<Passed>,
    /// In how many steps further rounds were run.
    pub(super) added: u32,
}

/// What a state is counted from, beside the time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    pub(super) step: u32,
    /// Whether from where every host and stream stands, too: how far they have come, and which slots they use, is left out.
    pub(super) rounds: bool,
}

/// A step and the state that it began with, but for the time.
pub(super) struct Period(pub(super) Found);

/// All that changes in a run, as it was late in the first step.
pub(super) struct Kept {
    pub(super) now: u64,
    pub(super) ranks: Vec<Rank>,
    pub(super) actors: Vec<Actor>,
    pub(super) ready: Vec<VecDeque<u64>>,
    pub(super) meetings: Vec<Meeting>,
    pub(super) exchanges: Exchanges,
    pub(super) seen: Vec<u32>,
    pub(super) waiter: Vec<u32>,
    pub(super) queue: EventQueue<Event>,
    pub(super) open: u64,
    pub(super) busy: Vec<Busy>,
    pub(super) exposed: Vec<Exposed>,
}

impl Watch {
    /// Places on the default stream of the first rank; none where every step is asked for or there are few.
    pub(super) fn new(plans: &[Plan], options: Options) -> Watch {
        let count = plans.first().map_or(0, |plan| plan.first.get(1).map_or(plan.ops.len() as u32, |&next| next));
        let at = |step: u32| move |part: &u32| (step, (u64::from(count) * u64::from(*part) / u64::from(PARTS)) as u32);
        let worth = options.steps > 2 && !options.record;
        let places =
            if worth { EARLY.iter().chain(&LATE).map(at(0)).chain(EARLY.iter().map(at(1))).collect() } else { vec![] };
        Watch { places, next: 0, found: vec![], kept: None }
    }

    pub(super) fn stop(&mut self) {
        *self = Watch { places: vec![], next: 0, found: vec![], kept: None };
    }
}
