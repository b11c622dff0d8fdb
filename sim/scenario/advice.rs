//! What would change an answer most: single changes of the file, each read and simulated as if it stood there.
//!
//! Two questions have the same answer. Which change makes the run faster ([`faster`] lists what a user of each framework would try
//! first)? And which default, that the file does not state, decides most ([`defaults`] takes each to its other values)?

mod defaults;
mod faster;
mod stages;
mod tried;
mod unstated;

pub(crate) use faster::changes as faster_changes;
pub use stages::even as even_stages;
pub(crate) use tried::tried;
use tried::tried_beside;
pub use tried::{Moved, Tried};
pub use unstated::{SHORT, Unstated};

use rayon::prelude::*;

use super::change::Change;
use super::predict::Prediction;
use super::understood::Scenario;

/// The least by which a change counts, as a share.
const COUNTS: f64 = 0.005;
/// How many changes are shown.
const SHOWN: usize = 3;

/// What would change an answer most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// The changes that raise tokens per second most while the plan fits, best first.
    pub faster: Vec<Tried>,
    /// Defaults that the file does not state and that move the answer, the most decisive first.
    pub defaults: Vec<Moved>,
    /// Where throughput lies if the defaults that decide it are not what runs.
    pub unstated: Option<Unstated>,
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
            let tried = tried_beside((scenario, answer), change);
            tick(None);
            tried
        };
        let tried: Vec<Option<Tried>> = faster.par_iter().map(simulate).collect();
        // What helps is often another value of a default, too.
        let other = |(_, change): &(String, Change)| match faster.iter().position(|known| known == change) {
            Some(known) => {
                tick(None);
                tried[known].clone()
            }
            None => simulate(change),
        };
        let others: Vec<Option<Tried>> = defaults.par_iter().map(other).collect();
        let simulated = tried.iter().chain(&others).flatten().count();
        // What fits for sure is not traded for what may.
        let keeps = |one: &Tried| one.sure || one.fits && !before.sure;
        let gains = |one: &Tried| keeps(one) && one.rate > (1.0 + COUNTS) * before.rate;
        let mut faster: Vec<Tried> = tried.into_iter().flatten().filter(gains).collect();
        faster.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        faster.truncate(SHOWN);
        let moved: Vec<Moved> = defaults
            .into_iter()
            .zip(others)
            .filter_map(|((default, _), other)| Some(Moved::by(&before, default, other?)))
            .collect();
        Advice { faster, unstated: Unstated::among(&before, &moved), defaults: decisive(moved), simulated }
    }

    /// Whether a step is short enough for all changes to be simulated unasked.
    pub fn is_quick(answer: &Prediction) -> bool {
        answer.classes.iter().map(|class| class.program.instructions()).sum::<u64>() <= SHORT
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
