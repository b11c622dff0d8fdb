//! What is left of a training's time: interruptions, checkpoints and restarts are counted, for `windtunnel run --for`.
//!
//! ```text
//! Prediction ─┐
//! Rates ──────┼─► Job ─► closed form: the best interval ─► trainings, drawn event by event ─► percentiles
//! Checkpoint ─┘
//! ```
//!
//! The step, its tokens and what ranks keep come from a prediction as it stands: nothing here depends on how that was made. Trainings are
//! drawn side by side. Each has streams of its own (`arrivals.rs`), so their number of threads changes nothing.
//!
//! To add a kind of lost time: a field of [`Spent`], and its row in `goodput/summary.rs`.

mod arrivals;
mod checkpoint;
pub mod closed;
mod cycle;
mod draw;
mod error;
mod job;
mod length;
mod nodes;
mod setting;
mod summary;

pub use checkpoint::{Checkpoint, kept};
pub use draw::{Outcome, Spent, draw};
pub use error::GoodputError;
pub use job::{Cause, Elastic, End, Job, Save};
pub use length::Length;
pub use setting::{Setting, expected, setting};

use rayon::prelude::*;

use super::prices;
use super::tick::Tick;
use crate::report::layout::Training;
use crate::scenario::{Prediction, Scenario};
use summary::{Asked, summary};

/// Draws trainings, side by side.
pub fn outcomes(job: &Job, (draws, seed): (u64, u64), tick: &Tick<'_>) -> Vec<Outcome> {
    let one = |training| {
        let outcome = draw(job, training, seed);
        tick();
        outcome
    };
    (0..draws).into_par_iter().map(one).collect()
}

/// How many trainings are drawn: those of the interval, and of its half and its double.
pub fn drawn(scenario: &Scenario) -> u64 {
    3 * scenario.interruptions().draws
}

/// How long a training takes and what it costs, once what interrupts it is counted.
pub fn goodput(
    scenario: &Scenario,
    answer: &Prediction,
    length: Length,
    tick: &Tick<'_>,
) -> Result<Training, GoodputError> {
    let setting = setting(scenario, answer, length)?;
    let draws = (setting.asked.draws, setting.asked.seed);
    let outcomes = outcomes(&setting.job, draws, tick);
    // The closed form leaves repairs out: trainings with other intervals show whether it matters.
    let others = [setting.every.div_ceil(2), setting.every.saturating_mul(2)];
    let others = others.map(|every| {
        let job = setting.job.every(every as f64 * setting.step);
        (every, self::outcomes(&job, draws, tick))
    });
    let asked = Asked { scenario, answer, length, setting: &setting, price: prices::of(&scenario.topology) };
    Ok(summary(&asked, &outcomes, &others))
}
