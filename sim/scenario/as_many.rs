//! A change of how a batch is cut, with the micro-batches that leave a step its sequences.

use super::change::Change;
use super::understood::Scenario;

/// Micro-batches of a step.
pub(super) const MICRO_BATCHES: &str = "batch.accumulation";

/// The change, with so many micro-batches. Where the file says how many sequences a step has and leaves them open, they follow.
pub(super) fn as_many(scenario: &Scenario, change: Change, micro_batches: i64) -> Change {
    let written = |key: &str| scenario.draft.get(key).is_some();
    match !written(MICRO_BATCHES) && (written("batch.global") || written("batch.global_tokens")) {
        true => change,
        false => change.and(Change::set(MICRO_BATCHES, micro_batches)),
    }
}

/// The change, with that many times fewer micro-batches, where they can be divided so.
pub(super) fn over(scenario: &Scenario, change: Change, times: i64) -> Change {
    let all = i64::from(scenario.job.micro_batches());
    if all % times == 0 { as_many(scenario, change, all / times) } else { change }
}
