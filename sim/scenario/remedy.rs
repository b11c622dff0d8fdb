//! What would make a plan fit that does not: changes of the file, each read and flown as if it stood there, not guessed. One change where
//! one will do, several together where none does alone, and more devices where nothing else helps.

mod change;
mod foreign;
mod larger;
mod megatron;
mod spmd;
#[cfg(test)]
mod tests;
mod together;
mod train;
mod tried;

pub use change::Remedy;
use rayon::prelude::*;
use tried::Tried;
pub(crate) use tried::combined;

use super::change::Change;
use super::understood::Scenario;
use crate::runtime::Plan;
use crate::units::Bytes;

/// What makes a plan fit.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub remedies: Vec<Remedy>,
    /// All changes together, where they do not make it fit.
    pub nearest: Option<Remedy>,
}

/// What makes a plan fit that lacks so many bytes \[B\]: the single changes, out of those a user would try first; where there are none,
/// changes together; where there are none, more devices; and last the longest sequence that fits, in halves of the plan's own. What the
/// scenario's own checks refuse is no change.
pub(super) fn find(scenario: &Scenario, lacks: i128) -> Found {
    let changes = changes(scenario);
    // Enough to say where to look; `ceiling` finds the exact one.
    let halves = std::iter::successors(Some(scenario.job.seq() / 2), |seq| Some(seq / 2));
    let shorter = halves.take_while(|&seq| seq >= 256).map(|seq| Change::set("batch.sequence", seq as i64));
    let (singles, shorter) = rayon::join(
        || changes.into_par_iter().filter_map(|change| Tried::of(scenario, change)).collect::<Vec<Tried>>(),
        || shorter.filter_map(|change| Tried::of(scenario, change)).find_map(|tried| tried.remedy()),
    );
    let mut found = Found::default();
    found.remedies.extend(singles.iter().filter_map(Tried::remedy));
    if found.remedies.is_empty() {
        let together = together::together(scenario, lacks, &singles);
        found.remedies.extend(together.iter().filter_map(Tried::remedy));
        if found.remedies.is_empty() {
            let nearest = together.first();
            found.remedies.extend(larger::larger(scenario, nearest.map(|all| &all.change)));
            let wants =
                |lacks: i128| Bytes(scenario.topology.chip.memory.0.saturating_add(lacks.try_into().unwrap_or(0)));
            found.nearest = nearest.map(|all| all.with_total(wants(all.need.lacks)));
        }
    }
    found.remedies.extend(shorter);
    found
}

/// Those of the changes that make the plan fit.
pub(crate) fn that_fit(scenario: &Scenario) -> Vec<Change> {
    let fits = |change: &Change| Tried::of(scenario, change.clone()).is_some_and(|tried| tried.need.total.is_some());
    changes(scenario).into_par_iter().filter(fits).collect()
}

/// What a user would try first.
fn changes(scenario: &Scenario) -> Vec<Change> {
    let mut changes = match &scenario.job {
        Plan::Torch(job) => train::changes(scenario, job),
        Plan::Zero(job) => train::changes(scenario, &job.whole),
        Plan::Megatron(job) => megatron::changes(scenario, job),
        Plan::InternEvo(job) => foreign::changes(scenario, &job.split),
        Plan::Nanotron(job) => foreign::changes(scenario, &job.split),
        Plan::Xla(job) => spmd::changes(scenario, job),
    };
    if !scenario.expandable_segments {
        changes.insert(0, Change::set("memory.expandable_segments", true));
    }
    changes
}

/// Changes that take away what grows with the square of a sequence and that nobody reads: a longer sequence fits with them.
pub(crate) fn without_squares(scenario: &Scenario) -> Vec<Change> {
    scenario.job.megatron().and_then(megatron::without_mask).into_iter().collect()
}
