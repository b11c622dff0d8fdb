//! Errors of many receipts in a few figures.
//!
//! Near-duplicates are kept in files on purpose, so a row weighs one over the number of rows of its configuration: the
//! figures are those of configurations.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Judged, Pair};
use super::check::Outcome;
use super::map::Reason;
use super::picks::{self, Picks};
use crate::scenario::predict::Confidence;
use crate::statistics::weighted;

/// Errors of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Rows that have it.
    pub rows: usize,
    /// Mean of the absolute error.
    pub mean: f64,
    /// Median of the absolute error.
    pub median: f64,
    /// 90th percentile of the absolute error.
    pub p90: f64,
    /// The largest absolute error.
    pub max: f64,
    /// Median of the signed error.
    pub bias: f64,
}

/// Receipts of one lane on one kind of hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Lane; `all` for the total.
    pub lane: String,
    /// Hardware; `all` for the total.
    pub hardware: String,
    /// Rows of the lane that are about what the FSDP lanes have.
    pub rows: usize,
    /// Of these, flown.
    pub covered: usize,
    /// Rows about something else, or that contradict themselves.
    pub outside: usize,
    /// Different configurations among the flown.
    pub configurations: usize,
    /// Step time.
    pub step: Option<Errors>,
    /// Share of measured steps inside the predicted interval.
    pub inside: Option<f64>,
    /// Reserved memory.
    pub reserved: Option<Errors>,
    /// Allocated memory.
    pub allocated: Option<Errors>,
    /// Memory of a kind not stated, against reserved.
    pub unstated: Option<Errors>,
    /// MFU in the receipts' own conventions.
    pub mfu: Option<Errors>,
    /// The same, by convention.
    pub mfu_by_convention: Vec<(String, Errors)>,
    /// How well layouts are chosen between, where receipts have several of one run.
    pub picks: Option<Picks>,
    /// Runs that ended out of memory, and how many of them are predicted to.
    pub out_of_memory: (usize, usize),
    /// Runs that went through but are predicted to be out of memory.
    pub false_alarms: usize,
}

impl Group {
    /// Share of rows flown.
    pub fn coverage(&self) -> f64 {
        if self.rows == 0 { 1.0 } else { self.covered as f64 / self.rows as f64 }
    }
}

fn errors(rows: &[&Judged], weight: &dyn Fn(&Judged) -> f64, pair: impl Fn(&Judged) -> Option<Pair>) -> Option<Errors> {
    let signed: Vec<(f64, f64)> = rows.iter().filter_map(|row| Some((pair(row)?.error(), weight(row)))).collect();
    let absolute: Vec<(f64, f64)> = signed.iter().map(|(error, weight)| (error.abs(), *weight)).collect();
    let all: f64 = absolute.iter().map(|(_, weight)| weight).sum();
    Some(Errors {
        rows: signed.len(),
        mean: absolute.iter().map(|(error, weight)| error * weight).sum::<f64>() / all,
        median: weighted(&absolute, 0.5)?,
        p90: weighted(&absolute, 0.9)?,
        max: absolute.iter().map(|(error, _)| *error).fold(0.0, f64::max),
        bias: weighted(&signed, 0.5)?,
    })
}

fn group(lane: &str, hardware: &str, outcome: &Outcome) -> Group {
    let among = |l: &str, h: &str| (lane == ALL || lane == l) && (hardware == ALL || hardware == h);
    let rows: Vec<&Judged> = outcome.judged.iter().filter(|row| among(&row.lane, &row.hardware)).collect();
    let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
    for row in &rows {
        *sizes.entry(row.configuration.as_str()).or_default() += 1.0;
    }
    let weight = |row: &Judged| 1.0 / sizes[row.configuration.as_str()];
    let left = outcome.skipped.iter().filter(|row| among(&row.lane, &row.hardware));
    let (outside, uncovered): (Vec<_>, Vec<_>) =
        left.partition(|row| matches!(row.reason, Reason::Outside(_) | Reason::Contradiction(_)));
    let inside: Vec<(f64, f64)> =
        rows.iter().filter_map(|row| Some((f64::from(u8::from(row.inside?)), weight(row)))).collect();
    let weights: f64 = inside.iter().map(|v| v.1).sum();
    let conventions: BTreeSet<&str> = rows.iter().map(|row| &*row.mfu_convention).collect();
    let died = rows.iter().filter(|row| row.memory_verdict.1);
    Group {
        lane: lane.to_owned(),
        hardware: hardware.to_owned(),
        rows: rows.len() + uncovered.len(),
        covered: rows.len(),
        outside: outside.len(),
        configurations: sizes.len(),
        step: errors(&rows, &weight, |row| row.step),
        inside: (weights > 0.0).then(|| inside.iter().map(|v| v.0 * v.1).sum::<f64>() / weights),
        reserved: errors(&rows, &weight, |row| row.reserved),
        allocated: errors(&rows, &weight, |row| row.allocated),
        unstated: errors(&rows, &weight, |row| row.unstated),
        mfu: errors(&rows, &weight, |row| row.mfu),
        mfu_by_convention: conventions
            .into_iter()
            .filter_map(|name| {
                let errors = errors(&rows, &weight, |row| row.mfu.filter(|_| row.mfu_convention == name))?;
                Some((name.to_owned(), errors))
            })
            .collect(),
        picks: Picks::of(&picks::groups(&rows)),
        out_of_memory: (died.clone().count(), died.filter(|row| row.memory_verdict.0).count()),
        false_alarms: rows.iter().filter(|row| row.memory_verdict == (true, false)).count(),
    }
}

/// Runs that are predicted with one confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trusted {
    /// How much their step times are said to be worth.
    pub confidence: Confidence,
    /// How far they are off; a configuration counts once.
    pub step: Errors,
    /// Share of the measured steps in their 80 % intervals.
    pub inside: f64,
}

/// How far predictions are off by how much they are said to be worth, the best first.
pub fn by_confidence(outcome: &Outcome) -> Vec<Trusted> {
    let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
    let timed = || outcome.judged.iter().filter(|row| row.step.is_some());
    timed().for_each(|row| *sizes.entry(row.configuration.as_str()).or_default() += 1.0);
    let weight = |row: &Judged| 1.0 / sizes[row.configuration.as_str()];
    let of = |&confidence: &Confidence| {
        let rows: Vec<&Judged> = timed().filter(|row| row.confidence == confidence).collect();
        let all: f64 = rows.iter().map(|row| weight(row)).sum();
        let inside: f64 = rows.iter().filter(|row| row.inside == Some(true)).map(|row| weight(row)).sum();
        Some(Trusted { confidence, step: errors(&rows, &weight, |row| row.step)?, inside: inside / all })
    };
    Confidence::ALL.iter().filter_map(of).collect()
}

/// The name of a total.
pub const ALL: &str = "all";

/// Per lane and hardware, and the total last.
pub fn summary(outcome: &Outcome) -> Vec<Group> {
    let judged = outcome.judged.iter().map(|row| (row.lane.as_str(), row.hardware.as_str()));
    let skipped = outcome.skipped.iter().map(|row| (row.lane.as_str(), row.hardware.as_str()));
    let mut names: Vec<(&str, &str)> = judged.chain(skipped).collect();
    names.sort_unstable();
    names.dedup();
    let mut groups: Vec<Group> = names.iter().map(|(lane, hardware)| group(lane, hardware, outcome)).collect();
    if groups.len() != 1 {
        groups.push(group(ALL, ALL, outcome));
    }
    groups
}

/// The receipts of which the step time is furthest off, the worst first.
pub fn worst(outcome: &Outcome, count: usize) -> Vec<&Judged> {
    let mut rows: Vec<&Judged> = outcome.judged.iter().filter(|row| row.step.is_some()).collect();
    let off = |row: &Judged| row.step.map_or(0.0, |pair| pair.error().abs());
    rows.sort_by(|a, b| off(b).total_cmp(&off(a)).then_with(|| a.id.cmp(&b.id)));
    rows.truncate(count);
    rows
}

#[cfg(test)]
mod tests {
    use super::weighted;

    #[test]
    fn a_configuration_weighs_the_same_however_many_rows_it_has() {
        let thrice = [(0.10, 1.0 / 3.0), (0.10, 1.0 / 3.0), (0.10, 1.0 / 3.0), (0.02, 1.0), (0.04, 1.0)];
        let once = [(0.10, 1.0), (0.02, 1.0), (0.04, 1.0)];
        assert_eq!(weighted(&thrice, 0.5), Some(0.04));
        assert_eq!(weighted(&once, 0.5), Some(0.04));
        assert_eq!(weighted(&thrice, 0.9), Some(0.10));
    }
}
