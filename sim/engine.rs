//! The discrete-event engine: replays a [`Program`] against [`Costs`] and says when everything happens.
//!
//! **What is simulated.** On each rank a host thread issues the step's instructions in order and pays for each before it
//! takes effect. Kernels and collectives go into first-in-first-out streams and run when they reach the front; the host
//! runs ahead until a stream's queue is full ([`Options::queue_limit`]) or it waits for an event. Kernels on different
//! streams of a rank run side by side. A collective starts when all its members have reached it, a message when both its
//! ends have. While one runs, the rank's kernels take `slowdown` times as long, and what meets on a rank shares its fabric
//! ([`crate::network`]): collectives both ways, messages one way at each end. When that changes, the rest of the work is
//! stretched or shrunk.
//!
//! **Order.** Time is in integer picoseconds. Events are ordered by (time, sequence of being scheduled). All events of an
//! instant and all they set off are handled first; only then are speeds set, once, from the state they left behind.
//! So the result does not depend on the order of events within an instant, and one rank stands for all that are
//! identical: a *folded* run, of one rank for each class, agrees with a full one to the picosecond (`cast.rs`).
//!
//! **Memory.** State lies in flat arrays made before the first event. Working memory and the event queue grow to their
//! largest need and are kept, so a steady state allocates nothing unless spans are recorded.

mod account;
mod cast;
mod check;
mod collective;
mod costs;
mod deadlock;
mod error;
mod exchange;
mod extend;
mod findings;
mod flights;
mod instant;
mod job;
pub mod lanes;
mod leap;
mod leave;
mod order;
mod pace;
mod parts;
mod plan;
mod queue;
mod ranks;
mod rounds;
mod run;
mod settle;
mod spent;
mod state;
mod steady;
#[cfg(test)]
mod tests;
mod timeline;
mod uplinks;
mod watch;

pub use costs::{CommCost, Costs, KernelCost};
pub use error::{EngineError, MissingEnd, Waiting, WaitsFor};
pub use extend::{agree, extend};
pub use job::{Class, Job, Options};
pub use queue::EventQueue;
pub use ranks::{Jitter, RankPace, Stretch};
pub use rounds::Round;
pub use timeline::{Breakdown, Busy, MarkTime, Simulated, Span, Timeline, What};

use crate::program::Program;
use crate::units::Time;

/// Runs a program that all ranks share.
pub fn simulate(program: &Program, costs: &Costs, options: Options) -> Result<Timeline, EngineError> {
    let class_of = vec![0; program.ranks as usize];
    simulate_job(Job { classes: &[Class { program, costs }], class_of: &class_of }, options)
}

/// Runs a job whose ranks may differ.
pub fn simulate_job(job: Job<'_>, options: Options) -> Result<Timeline, EngineError> {
    prepare(job, options)?.run()
}

/// Runs every rank of a job in the event loop, each at its own pace.
///
/// # Panics
/// If there are not as many paces as ranks.
pub fn simulate_ranks(job: Job<'_>, paces: &[RankPace], options: Options) -> Result<Timeline, EngineError> {
    let options = Options { fold: false, ..options };
    check::check(job, options)?;
    assert_eq!(paces.len(), job.class_of.len(), "a pace for each rank");
    let mut engine = state::Engine::new(job, options);
    engine.paces = Some(paces);
    engine.run()
}

/// Checks a job and lays it out.
pub fn prepare(job: Job<'_>, options: Options) -> Result<Prepared<'_>, EngineError> {
    check::check(job, options)?;
    Ok(Prepared(state::Engine::new(job, options)))
}

/// A job that has been laid out.
pub struct Prepared<'a>(state::Engine<'a>);

impl Prepared<'_> {
    /// What the hosts pay for a step as it is written, by class \[ps\].
    pub fn host_work(&self) -> Vec<Time> {
        let paid = |plan: &plan::Plan| plan.host.iter().map(|op| Time(op.cost)).sum();
        self.0.plans.iter().map(paid).collect()
    }

    /// Runs it.
    pub fn run(self) -> Result<Timeline, EngineError> {
        self.0.run()
    }

    /// Runs it with so many rounds of micro-batches in each step beyond those that are written: they are like one that repeats. None if
    /// no round repeats. Also what each of them launches, by class.
    pub fn run_further(self, rounds: u32) -> Result<Option<(Timeline, Vec<Round>)>, EngineError> {
        self.0.run_further(rounds)
    }
}
