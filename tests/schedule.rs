//! Pipeline schedules: what theory says of them, what papers computed of them, and what is wrong with others.

mod closed_forms;
mod files;
mod laws;
mod zero_bubble;

use windtunnel::schedule::{self, Costs, Schedule, Shape};
use windtunnel::units::Time;

/// A schedule by name and shape.
fn build(name: &str, ranks: u32, virtual_stages: u32, microbatches: u32) -> Schedule {
    schedule::build(name, Shape { ranks, virtual_stages, microbatches }).unwrap_or_else(|error| panic!("{error}"))
}

/// The bubble where forward, gradients of inputs and gradients of weights take these times at every stage.
fn bubble(schedule: &Schedule, parts: [u64; 3]) -> f64 {
    let costs = Costs::uniform(schedule.stages, parts.map(Time), Time(0));
    schedule::replay(schedule, &costs).unwrap().bubble()
}
