//! What would make a plan fit that does not: single changes of the file, each read and flown as if it stood there, not guessed.

mod change;
mod foreign;
mod megatron;
mod spmd;
mod train;

pub use change::Remedy;
use rayon::prelude::*;

use super::change::Change;
use super::predict::{Settings, shortened, total_if_fits};
use super::understood::Scenario;
use crate::runtime::Plan;

/// The single changes, out of those a user would try first, that make the plan fit; and, failing a smaller batch, the
/// longest sequence that does. What the scenario's own checks refuse is no change.
pub(super) fn find(scenario: &Scenario) -> Vec<Remedy> {
    let changes = changes(scenario);
    // A shorter sequence, in halves: enough to say where to look; `ceiling` finds the exact one.
    let halves = std::iter::successors(Some(scenario.job.seq() / 2), |seq| Some(seq / 2));
    let mut shorter = halves.take_while(|&seq| seq >= 256).map(|seq| Change::set("batch.sequence", seq as i64));
    let (mut remedies, shorter) = rayon::join(
        || changes.par_iter().filter_map(|change| fitting(scenario, change)).collect::<Vec<Remedy>>(),
        || shorter.find_map(|change| fitting(scenario, &change)),
    );
    remedies.extend(shorter);
    remedies
}

/// Those of the changes that make the plan fit.
pub(crate) fn that_fit(scenario: &Scenario) -> Vec<Change> {
    changes(scenario).into_par_iter().filter(|change| fitting(scenario, change).is_some()).collect()
}

/// What a user would try first.
fn changes(scenario: &Scenario) -> Vec<Change> {
    let flag = scenario.job.recompute_flag();
    let mut changes = match &scenario.job {
        Plan::Torch(job) => train::changes(scenario, job),
        Plan::Zero(job) => train::changes(scenario, &job.whole),
        Plan::Megatron(job) => megatron::changes(job),
        Plan::InternEvo(job) => foreign::changes(flag, &job.split),
        Plan::Nanotron(job) => foreign::changes(flag, &job.split),
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

/// The change, if the plan fits with it.
fn fitting(scenario: &Scenario, change: &Change) -> Option<Remedy> {
    let read = scenario.draft.changed(change).tried(None).ok()?;
    let changed = scenario.with(read.job, read.expandable_segments);
    if changed.job.refuses().is_some() {
        return None;
    }
    let job = shortened(&changed.job).unwrap_or_else(|| changed.job.clone());
    let device_total = total_if_fits(&changed, &changed.written(&job, changed.most(Settings::default())).ok()?)?;
    Some(Remedy { change: change.to_string(), device_total })
}
