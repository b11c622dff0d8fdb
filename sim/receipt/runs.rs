//! Errors of step times by kind of run: what intervals of predictions rest on (`scenario/predict/witnesses.rs`).

use std::collections::BTreeMap;

use super::check::Outcome;
use crate::scenario::predict::Witness;

/// What stands above the columns.
const ABOUT: &str = "\
# The logarithm of measured over predicted step time of every public run that can be simulated, by kind of run. A family is a
# model's runs by one publisher; runs of one configuration share a weight of one. Made by
# windtunnel check tests/receipts/public.jsonl tests/receipts/vtrain-a100.jsonl --runs sim/cost/profiles/measured-runs.csv
";

/// The table, in the order of families and kinds.
pub fn table(outcome: &Outcome) -> String {
    let timed = || outcome.judged.iter().filter_map(|row| row.step.map(|step| (row, step)));
    let mut runs: BTreeMap<&str, f64> = BTreeMap::new();
    timed().for_each(|(row, _)| *runs.entry(&row.configuration).or_default() += 1.0);
    let line = |(row, step): (&super::case::Judged, super::case::Pair)| {
        let witness = Witness {
            family: row.family.clone(),
            lane: row.lane.clone(),
            kind: row.kind.clone(),
            chips: row.chips,
            weight: 1.0 / runs[row.configuration.as_str()],
            reasons: row.reasons,
            error: libm::log(step.measured / step.predicted),
        };
        witness.line()
    };
    let mut lines: Vec<String> = timed().map(line).collect();
    lines.sort_unstable();
    format!("{ABOUT}{}\n{}\n", Witness::columns(), lines.join("\n"))
}
