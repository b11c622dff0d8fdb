//! What would change an answer most: single changes of the file, each read and simulated as if it stood there.
//!
//! Two questions have the same answer. Which change makes the run faster ([`faster`] lists what a user of each framework would try
//! first)? And which default, that the file does not state, decides most ([`defaults`] takes each to its other values)?

mod defaults;
mod faster;
mod stages;

pub(crate) use faster::changes as faster_changes;
pub use stages::even as even_stages;

use rayon::prelude::*;

use super::change::Change;
use super::predict::{Prediction, Settings, predict};
use super::understood::Scenario;
use crate::units::{Bytes, Time};

/// Instructions, at most, of all classes of ranks of a step that [`Advice::of`] may try changes of: a second or two for all.
pub const SHORT: u64 = 200_000;
/// The least by which a change counts, as a share.
const COUNTS: f64 = 0.005;
/// How many changes are shown.
const SHOWN: usize = 3;

/// A change, and what the run would do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// The change, as lines of the scenario.
    pub change: String,
    /// The step \[ps\].
    pub step: Time,
    /// Tokens of a step.
    pub tokens: u64,
    /// Tokens per second and chip.
    pub rate: f64,
    /// What the fullest device holds, or would have to.
    pub device_total: Bytes,
    /// Whether the plan fits.
    pub fits: bool,
    /// Whether it does beyond doubt.
    pub sure: bool,
}

/// A default, and how far the answer moves with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The default, as a line of the scenario.
    pub default: String,
    /// The other value that moves the answer most.
    pub other: Tried,
    /// By how much tokens per second change with it, as a share.
    pub rate: f64,
    /// By how much the fullest device's memory changes with it.
    pub memory: f64,
}

/// What would change an answer most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// The changes that raise tokens per second most while the plan fits, best first.
    pub faster: Vec<Tried>,
    /// Defaults that the file does not state and that move the answer, the most decisive first.
    pub defaults: Vec<Moved>,
    /// How many changes were simulated.
    pub simulated: usize,
}

impl Advice {
    /// Simulates single changes. `tick` is called once with how many there are, and as each is done.
    pub fn of(scenario: &Scenario, answer: &Prediction, tick: impl Fn(Option<usize>) + Sync) -> Advice {
        let before = Tried::of(String::new(), scenario, answer);
        let mut faster = if before.fits { faster::changes(scenario) } else { vec![] };
        faster.extend(stages::even(scenario, answer).filter(|_| before.fits));
        let defaults = defaults::others(scenario);
        tick(Some(faster.len() + defaults.len()));
        let simulate = |change: &Change| {
            let tried = tried(scenario, change);
            tick(None);
            tried
        };
        let tried: Vec<Option<Tried>> = faster.par_iter().map(simulate).collect();
        let others: Vec<Option<Tried>> = defaults.par_iter().map(|(_, change)| simulate(change)).collect();
        let simulated = tried.iter().chain(&others).flatten().count();
        // What fits for sure is not traded for what may.
        let keeps = |one: &Tried| one.sure || one.fits && !before.sure;
        let gains = |one: &Tried| keeps(one) && one.rate > (1.0 + COUNTS) * before.rate;
        let mut faster: Vec<Tried> = tried.into_iter().flatten().filter(gains).collect();
        faster.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        faster.truncate(SHOWN);
        let moved = defaults.into_iter().zip(others).filter_map(|((default, _), other)| {
            let other = other?;
            let change = |after: f64, before: f64| after / before - 1.0;
            let rate = change(other.rate, before.rate);
            let memory = change(other.device_total.0 as f64, before.device_total.0 as f64);
            Some(Moved { default, other, rate, memory })
        });
        Advice { faster, defaults: decisive(moved.collect()), simulated }
    }

    /// Whether a step is short enough for all changes to be simulated unasked.
    pub fn is_quick(answer: &Prediction) -> bool {
        answer.classes.iter().map(|class| class.program.instructions()).sum::<u64>() <= SHORT
    }
}

impl Moved {
    /// How far the answer moves, as a share.
    fn most(&self) -> f64 {
        self.rate.abs().max(self.memory.abs())
    }
}

/// Of each default the value that moves the answer most; those that move it at all, the most decisive first.
fn decisive(mut moved: Vec<Moved>) -> Vec<Moved> {
    moved.retain(|one| one.most() >= COUNTS);
    moved.sort_by(|a, b| b.most().total_cmp(&a.most()));
    let mut kept: Vec<Moved> = vec![];
    for one in moved {
        if !kept.iter().any(|known| known.default == one.default) {
            kept.push(one);
        }
    }
    kept
}

impl Tried {
    fn of(change: String, scenario: &Scenario, answer: &Prediction) -> Tried {
        let memory = &answer.memory;
        Tried {
            change,
            step: answer.step,
            tokens: answer.tokens,
            rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
            device_total: if memory.on_device { memory.device_total() } else { memory.wanted },
            fits: !memory.refused(),
            sure: memory.fits_beyond_doubt(),
        }
    }
}

/// The run with a change; none if the scenario's own checks refuse it.
pub(crate) fn tried(scenario: &Scenario, change: &Change) -> Option<Tried> {
    let read = scenario.draft.changed(change).tried(None).ok()?;
    let settings = Settings { remedies: false, ..Settings::default() };
    let answer = predict(&read, settings).ok()?;
    Some(Tried::of(change.to_string(), &read, &answer))
}
