//! Errors of step times by kind of run: what intervals of predictions rest on (`scenario/predict/witnesses.rs`).

use std::collections::BTreeMap;

use super::check::Outcome;
use crate::scenario::predict::Witness;

/// What stands above the columns.
const ABOUT: &str = "\
# The logarithm of measured over predicted step time of every public run that can be simulated, a line for each configuration
# (the mean of its runs), by kind of run. A family is a model's runs by one publisher. Made by
# windtunnel check tests/receipts/public.jsonl tests/receipts/vtrain-a100.jsonl --runs calibrate/profiles/measured-runs.csv
";

/// The table, in the order of families and kinds.
pub fn table(outcome: &Outcome) -> String {
    let mut errors: BTreeMap<&str, (Witness, f64)> = BTreeMap::new();
    for row in &outcome.judged {
        let Some(step) = row.step else { continue };
        let error = libm::log(step.measured / step.predicted);
        let (family, lane, kind) = (row.family.clone(), row.lane.clone(), row.kind.clone());
        let first = || (Witness { family, lane, kind, residual: row.residual, error: 0.0 }, 0.0);
        let (witness, runs) = errors.entry(&row.configuration).or_insert_with(first);
        witness.error += error;
        *runs += 1.0;
    }
    let mean = |(witness, runs): (Witness, f64)| Witness { error: witness.error / runs, ..witness };
    let mut lines: Vec<String> = errors.into_values().map(|of| mean(of).line()).collect();
    lines.sort_unstable();
    format!("{ABOUT}{}\n{}\n", Witness::COLUMNS, lines.join("\n"))
}
