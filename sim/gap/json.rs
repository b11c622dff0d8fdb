//! A gap as JSON: times in seconds, names as the report has them.

use serde::Serialize;

use super::idle::{Idle, Why};
use super::parts::{Gap, Match, Part, Sum};
use super::text::{About, findings, name};
use crate::units::Time;

/// What `check SCENARIO --trace-in TRACE --json FILE` writes.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The scenario's file.
    scenario: String,
    /// The trace's file.
    trace: String,
    /// The rank.
    rank: u32,
    /// The step, as the trace calls it.
    step: String,
    measured_s: f64,
    predicted_s: f64,
    /// Measured less predicted: `parts`, `idle` and `left_over` add up to it.
    gap_s: f64,
    classes: Vec<ClassRow>,
    parts: Vec<PartRow>,
    idle: Vec<IdleRow>,
    left_over: Pair,
    late_ranks: Vec<LateRow>,
    findings: Vec<Finding>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Pair {
    measured_s: f64,
    predicted_s: f64,
}

#[derive(Debug, Serialize)]
struct Side {
    count: u64,
    busy_s: f64,
    ran_s: f64,
    waited_s: f64,
}

#[derive(Debug, Serialize)]
struct ClassRow {
    class: &'static str,
    measured: Side,
    predicted: Side,
    adds_s: f64,
    /// Absent where only one side has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct PartRow {
    name: String,
    class: &'static str,
    matched: &'static str,
    measured: Side,
    predicted: Side,
    adds_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slow: Vec<SlowRow>,
}

#[derive(Debug, Serialize)]
struct SlowRow {
    number: usize,
    scope: String,
    took_s: f64,
    usual_s: f64,
}

#[derive(Debug, Serialize)]
struct IdleRow {
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'static str>,
    measured_s: f64,
    predicted_s: f64,
    adds_s: f64,
    host: Vec<DoingRow>,
}

#[derive(Debug, Serialize)]
struct DoingRow {
    what: String,
    time_s: f64,
}

#[derive(Debug, Serialize)]
struct LateRow {
    rank: u32,
    class: &'static str,
    count: u64,
    waited_s: f64,
}

#[derive(Debug, Serialize)]
struct Finding {
    adds_s: f64,
    words: String,
}

fn seconds(picoseconds: i128) -> f64 {
    picoseconds as f64 * 1e-12
}

fn pair((predicted, measured): (Time, Time)) -> Pair {
    Pair { measured_s: measured.seconds(), predicted_s: predicted.seconds() }
}

fn side(sum: Sum) -> Side {
    let Sum { count, busy, ran, waited } = sum;
    Side { count, busy_s: busy.seconds(), ran_s: ran.seconds(), waited_s: waited.seconds() }
}

fn part_row(part: &Part) -> PartRow {
    let matched = match part.matched {
        Match::Same => "same",
        Match::Other => "another shape or name",
        Match::NotSeen => "only predicted",
        Match::NotPredicted => "only measured",
    };
    let slow = part.slow.iter().map(|slow| SlowRow {
        number: slow.at + 1,
        scope: slow.scope.clone(),
        took_s: slow.took.seconds(),
        usual_s: slow.usual.seconds(),
    });
    PartRow {
        name: name(part),
        class: part.class.name(),
        matched,
        measured: side(part.measured),
        predicted: side(part.predicted),
        adds_s: seconds(part.gap()),
        ratio: part.ratio(),
        slow: slow.collect(),
    }
}

fn idle_row(idle: &Idle) -> IdleRow {
    IdleRow {
        why: match idle.why {
            Why::Host => "the host was late",
            Why::Latency => "launched, not yet at work",
        },
        before: idle.before.map(crate::program::Pass::name),
        measured_s: idle.measured.seconds(),
        predicted_s: idle.predicted.seconds(),
        adds_s: seconds(idle.gap()),
        host: idle.host.iter().map(|(what, time)| DoingRow { what: what.clone(), time_s: time.seconds() }).collect(),
    }
}

impl Report {
    /// A gap, headed with what it is about.
    pub fn of(about: &About, gap: &Gap) -> Report {
        let classes = gap.classes().into_iter().map(|(class, sum)| ClassRow {
            class: class.name(),
            measured: side(sum.measured),
            predicted: side(sum.predicted),
            adds_s: seconds(sum.gap()),
            ratio: sum.ratio(),
        });
        let late = gap.late.iter().map(|late| LateRow {
            rank: late.rank,
            class: late.class.name(),
            count: late.count,
            waited_s: late.waited.seconds(),
        });
        let findings = findings(gap).into_iter().map(|(adds, words)| Finding { adds_s: seconds(adds), words });
        Report {
            scenario: about.scenario.clone(),
            trace: about.trace.clone(),
            rank: about.rank,
            step: about.step.clone(),
            measured_s: gap.measured.seconds(),
            predicted_s: gap.predicted.seconds(),
            gap_s: seconds(gap.gap()),
            classes: classes.collect(),
            parts: gap.parts.iter().map(part_row).collect(),
            idle: gap.idle.iter().map(idle_row).collect(),
            left_over: pair(gap.left_over),
            late_ranks: late.collect(),
            findings: findings.collect(),
            notes: about.notes.clone(),
        }
    }
}
