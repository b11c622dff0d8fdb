//! The discrete-event engine: replays a [`Program`] against [`Costs`] and says when everything happens.
//!
//! **What is simulated.** On each rank a host thread issues the step's instructions in order and pays for each before it
//! takes effect. Kernels and collectives go into first-in-first-out streams and run when they reach the front; the host
//! runs ahead until a stream's queue is full ([`Options::queue_limit`]) or it waits for an event. Kernels on different
//! streams of a rank run side by side. A collective starts when all its members have reached it. While one runs, the
//! rank's kernels take `slowdown` times as long, and collectives that meet on a rank share its fabric
//! ([`crate::network`]); when that changes, the rest of the work is stretched or shrunk.
//!
//! **Order.** Time is in integer picoseconds. Events are ordered by (time, sequence of being scheduled). All events of an
//! instant and all they set off are handled first; only then are speeds set, once, from the state they left behind.
//! So the result does not depend on the order of events within an instant, and with identical ranks one rank stands
//! for all: a *folded* run agrees with a full one to the picosecond.
//!
//! **Memory.** State lies in flat arrays made before the first event. Working memory and the event queue grow to their
//! largest need and are kept, so a steady state allocates nothing unless spans are recorded.

mod account;
mod costs;
mod deadlock;
mod error;
mod pace;
mod plan;
mod queue;
mod run;
mod settle;
mod state;
#[cfg(test)]
mod tests;
mod timeline;

pub use costs::{CommCost, Costs, KernelCost};
pub use error::{EngineError, Waiting, WaitsFor};
pub use queue::EventQueue;
pub use timeline::{Breakdown, Busy, MarkTime, Span, Timeline, What};

use crate::program::Program;

/// How to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Steps to run back to back; the last one is reported. Three let the host settle into its lead over the device.
    pub steps: u32,
    /// Simulate one rank for all. Exact, as long as all ranks run the same program at the same costs.
    pub fold: bool,
    /// Keep every span, and when the host did what in the last step.
    pub record: bool,
    /// Kernels and collectives that a stream holds, the running one included, before the host blocks. NVIDIA documents
    /// no limit; users find about 1,000 per stream (NVIDIA developer forum, thread 68937), so we take 1,024.
    pub queue_limit: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { steps: 3, fold: true, record: false, queue_limit: 1024 }
    }
}

/// One class of identical ranks: what they run and what it costs them.
#[derive(Clone, Copy, Debug)]
pub struct Class<'a> {
    /// What they run.
    pub program: &'a Program,
    /// What it costs.
    pub costs: &'a Costs,
}

/// A job whose ranks differ: pipeline stages, or a straggler among equals.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The classes; they share one table of groups and one number of ranks.
    pub classes: &'a [Class<'a>],
    /// The class of each rank, an index into `classes`.
    pub class_of: &'a [u32],
}

/// Runs a program that all ranks share.
pub fn simulate(program: &Program, costs: &Costs, options: Options) -> Result<Timeline, EngineError> {
    let class_of = vec![0; program.ranks as usize];
    simulate_job(Job { classes: &[Class { program, costs }], class_of: &class_of }, options)
}

/// Runs a job whose ranks may differ.
pub fn simulate_job(job: Job<'_>, options: Options) -> Result<Timeline, EngineError> {
    check(job, options)?;
    state::Engine::new(job, options).run()
}

/// Refuses what cannot be run.
fn check(job: Job<'_>, options: Options) -> Result<(), EngineError> {
    for (option, value) in [("steps", options.steps as usize), ("queue_limit", options.queue_limit as usize)] {
        if value == 0 {
            return Err(EngineError::Zero { option });
        }
    }
    let Some(first) = job.classes.first().map(|class| class.program) else {
        return Err(EngineError::Zero { option: "number of classes" });
    };
    if options.fold && job.classes.len() > 1 {
        return Err(EngineError::Fold { classes: job.classes.len() });
    }
    if first.ranks == 0 || first.streams.is_empty() {
        return Err(EngineError::Zero { option: "number of ranks or streams" });
    }
    let found = job.class_of.iter().filter(|&&class| (class as usize) < job.classes.len()).count();
    if found != first.ranks as usize || job.class_of.len() != found {
        return Err(EngineError::ClassOf { found, expected: first.ranks, last: job.classes.len() - 1 });
    }
    for (class, Class { program, costs }) in job.classes.iter().enumerate() {
        costs.check(program)?;
        let shared = program.groups.iter().zip(&first.groups).take_while(|(a, b)| a == b).count();
        for (what, found, expected) in [
            ("ranks", program.ranks as usize, first.ranks as usize),
            ("groups", program.groups.len(), first.groups.len()),
            ("groups in common", shared, first.groups.len()),
        ] {
            if found != expected {
                return Err(EngineError::Classes { class, what, found, expected });
            }
        }
    }
    for group in &first.groups {
        let block = u64::from(group.size) * u64::from(group.stride);
        if block == 0 || !u64::from(first.ranks).is_multiple_of(block) {
            let (group, size, stride) = (group.name.clone(), group.size, group.stride);
            return Err(EngineError::Group { group, size, stride, block, ranks: first.ranks });
        }
    }
    Ok(())
}
