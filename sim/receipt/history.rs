//! The history of a job: its runs by date, and since when prediction and measurement part.
//!
//! **The rule** looks at measured over predicted. It parts at a run that is far from the median of all earlier runs, if every later run is
//! far from it, too, on the same side. Far is more than 3 %, and more than three times the earlier runs' scatter: the median of their
//! distances from their median. One odd run is no parting.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::case::Judged;
use crate::report::text::table;
use crate::statistics;

/// Nearer than this, runs of one job differ anyway.
const NEAR: f64 = 0.03;
/// How many scatters of the earlier runs are far.
const FAR: f64 = 3.0;

/// Runs of one job in the order of their dates.
#[derive(Clone, Debug)]
pub struct History<'a> {
    /// What the job is called.
    pub job: String,
    /// Its runs with a date and a step time.
    pub runs: Vec<&'a Judged>,
    /// The first of the runs that part, if any do.
    pub parted: Option<usize>,
}

/// Measured over predicted step time of a run.
pub fn ratio(run: &Judged) -> Option<f64> {
    run.step.map(|pair| pair.measured / pair.predicted)
}

/// Histories of all jobs with at least two dated runs. A job is what `measured.family` names, else what has one configuration.
pub fn histories(judged: &[Judged]) -> Vec<History<'_>> {
    let mut jobs: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for run in judged.iter().filter(|run| !run.date.is_empty() && run.step.is_some()) {
        let job = if run.family.is_empty() { &run.configuration } else { &run.family };
        jobs.entry(job).or_default().push(run);
    }
    jobs.into_values().filter(|runs| runs.len() > 1).map(of).collect()
}

fn of(mut runs: Vec<&Judged>) -> History<'_> {
    runs.sort_by_key(|run| (&run.date, &run.id));
    let ratios: Vec<f64> = runs.iter().filter_map(|run| ratio(run)).collect();
    let first = runs[0];
    let job = if first.family.is_empty() { first.name.clone() } else { first.family.clone() };
    History { job, parted: parted(&ratios), runs }
}

/// The first place from which on all are far from those before it.
fn parted(ratios: &[f64]) -> Option<usize> {
    (1..ratios.len()).find(|&at| {
        let (before, since) = ratios.split_at(at);
        let usual = median(before.iter().copied());
        let scatter = median(before.iter().map(|ratio| (ratio - usual).abs()));
        let far = (FAR * scatter).max(NEAR * usual);
        let from = since.iter().map(|ratio| ratio - usual);
        // All on one side: runs that leap about part nowhere.
        from.clone().all(|distance| distance > far) || from.clone().all(|distance| distance < -far)
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    statistics::median(values).unwrap_or(0.0)
}

/// Histories for people.
pub fn text(judged: &[Judged]) -> String {
    let mut out = String::new();
    for History { job, runs, parted } in histories(judged) {
        let rows = runs.iter().enumerate().filter_map(|(at, run)| {
            let pair = run.step?;
            let here = if parted == Some(at) { "parts here" } else { "" };
            let cells = [
                run.date.clone(),
                run.commit.clone(),
                format!("{:.3} s", pair.measured),
                format!("{:.3} s", pair.predicted),
                format!("{:.3}", ratio(run)?),
                here.to_owned(),
            ];
            Some(cells.to_vec())
        });
        let header = ["date", "commit", "measured", "predicted", "measured/predicted", ""];
        let _ = writeln!(out, "\nHistory of {job}\n{}", table(&header, rows.collect(), 2));
        let Some(at) = parted else {
            let _ = writeln!(out, "  Prediction and measurement part nowhere.");
            continue;
        };
        let usual = median(runs[..at].iter().filter_map(|run| ratio(run)));
        let since = median(runs[at..].iter().filter_map(|run| ratio(run)));
        let commit = if runs[at].commit.is_empty() { String::new() } else { format!(", commit {}", runs[at].commit) };
        let _ = writeln!(
            out,
            "  Prediction and measurement part on {}{commit}: a step took {usual:.3} of the prediction before, and takes {since:.3} since.",
            runs[at].date
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::parted;

    #[test]
    fn runs_part_where_all_later_ones_are_far_from_all_earlier_ones() {
        assert_eq!(parted(&[1.02, 1.01, 1.03, 1.12, 1.13, 1.11]), Some(3));
        assert_eq!(parted(&[1.00, 0.90]), Some(1));
        assert_eq!(parted(&[1.02, 1.01, 1.03]), None);
        assert_eq!(parted(&[1.02, 1.01, 1.50, 1.03, 1.02]), None, "one odd run");
        // Runs that scatter by 5 % part only where it is more than that.
        assert_eq!(parted(&[1.00, 1.05, 0.95, 1.05, 0.95, 1.10]), None);
        assert_eq!(parted(&[]), None);
    }
}
