//! Lower bounds of a plan's memory and of its step, without simulating it: a search skips what they rule out.
//!
//! A bound is a promise: no simulation of the plan needs less memory or time (`tests/floors.rs` holds them to it). Both come from the
//! same programs and costs that the simulation takes, with everything left out that can only make a plan larger or slower: rounding
//! and fragmentation of the allocator, the host, messages between stages, what overlapping kernels take from one another, and
//! whatever happens once in a step.
//!
//! - **Ranks that run the whole model** ([`whole`]): models of three and of four of its layers say what a layer adds, and up to three
//!   micro-batches what each further one does.
//! - **Models split on Megatron's axes** ([`stages`]): a few layers say what a layer costs and keeps, and what the first and the last
//!   stage add. The plan's own schedule, replayed with these times, says what its stages wait for at least, and how many micro-batches
//!   each rank holds. Plans that differ in stages, replicas and micro-batches alone share those few layers.

mod bound;
mod known;
mod stages;
mod walk;
mod whole;

pub use bound::Floor;
pub use known::Floors;

use crate::runtime::Parts;
use crate::scenario::Scenario;
use crate::units::{Bytes, Time};

impl Floors {
    /// What a scenario's plan needs at least.
    pub fn of(&self, scenario: &Scenario) -> Floor {
        self.within(scenario, Bytes(u64::MAX))
    }

    /// The same, where a step is asked for only if memory does not exceed the room: else it is zero.
    pub fn within(&self, scenario: &Scenario, room: Bytes) -> Floor {
        if scenario.job.refuses().is_some() {
            return Floor::default();
        }
        let floor = match scenario.job.parts() {
            Parts::Split(split) => stages::floor(self, scenario, split, room),
            Parts::Whole(job) if job.pipeline.is_some() => Floor::default(),
            Parts::Whole(_) | Parts::Compiled(_) => whole::floor(self, scenario, room),
        };
        // Ranks at a pace of their own may be faster than the profile, which times are bounded by.
        if scenario.ranks.is_some() { Floor { step: Time::ZERO, ..floor } } else { floor }
    }
}
