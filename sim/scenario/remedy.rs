//! What would make a plan fit that does not: single changes, each flown through the allocator, not guessed.

mod foreign;
mod megatron;
mod spmd;
mod train;

use super::predict::total_if_fits;
use super::understood::Scenario;
use crate::runtime::{Job, Parts};
use crate::units::Bytes;

/// A single change that would make the plan fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The change, as a line of the scenario.
    pub change: String,
    /// What the device would then have to hold.
    pub device_total: Bytes,
}

/// One change to a job, with the line that says so.
type Change<J> = (String, Box<dyn Fn(&mut J)>);

/// The single changes, out of those a user would try first, that make the plan fit; and, failing a smaller batch, the
/// longest sequence that does.
pub(super) fn find(scenario: &Scenario) -> Vec<Remedy> {
    match scenario.job.parts() {
        Parts::Whole(job) => {
            let wrap = |whole| scenario.job.with_whole(whole);
            fitting(scenario, job, train::changes(scenario, job), train::shorter, wrap)
        }
        Parts::Split(job) => {
            let changes = match scenario.job.recompute_flag() {
                Some(flag) => foreign::changes(flag, job),
                None => megatron::changes(job),
            };
            fitting(scenario, job, changes, megatron::shorter, |split| scenario.job.with_split(split))
        }
        Parts::Compiled(job) => fitting(scenario, job, spmd::changes(job), spmd::shorter, Job::of),
    }
}

/// Flies the changes of a runtime.
fn fitting<J: Clone>(
    scenario: &Scenario,
    job: &J,
    changes: Vec<Change<J>>,
    shorter: fn(&J, u64) -> Option<J>,
    wrap: impl Fn(J) -> Job,
) -> Vec<Remedy> {
    let total = |job: J, expandable: bool| {
        let changed = scenario.with(wrap(job), expandable);
        match changed.job.refuses() {
            Some(_) => None,
            None => total_if_fits(&changed, &changed.job.compile()),
        }
    };
    let mut remedies = vec![];
    let mut note = |change: String, total: Option<Bytes>| {
        remedies.extend(total.map(|device_total| Remedy { change, device_total }));
        total.is_some()
    };
    if !scenario.expandable_segments && !matches!(scenario.job.parts(), Parts::Compiled(_)) {
        note("memory.expandable_segments = true".to_owned(), total(job.clone(), true));
    }
    for (change, apply) in changes {
        let mut job = job.clone();
        apply(&mut job);
        note(change, total(job, scenario.expandable_segments));
    }
    // A shorter sequence, in halves: enough to say where to look; `ceiling` finds the exact one.
    let mut seq = scenario.job.seq() / 2;
    while seq >= 256 {
        let Some(job) = shorter(job, seq) else { break };
        if note(format!("batch.sequence = {seq}"), total(job, scenario.expandable_segments)) {
            break;
        }
        seq /= 2;
    }
    remedies
}
