//! A gap for people: classes that add up to it, and what stands out, largest first.

use std::fmt::Write as _;

use super::idle::{Idle, Why, difference};
use super::parts::{Gap, Match, Part};
use super::side::Shape;
use crate::program::Pass;
use crate::report::text::table;
use crate::units::Time;

/// What a report is headed with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The scenario's file.
    pub scenario: String,
    /// The trace's file.
    pub trace: String,
    /// The rank whose trace it is.
    pub rank: u32,
    /// The step, as the trace calls it.
    pub step: String,
    /// What could not be known, a sentence each.
    pub notes: Vec<String>,
}

/// Things that add less than so much of the measured step are not told one by one.
const WORTH: f64 = 0.002;
/// So many are told at most.
const MOST: usize = 15;
/// So many of the things that the host was at.
const DOING: usize = 3;

fn millis(time: Time) -> String {
    format!("{:.3} ms", time.seconds() * 1e3)
}

fn adds(picoseconds: i128) -> String {
    format!("{:+.3} ms", picoseconds as f64 * 1e-9)
}

fn factor(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "·".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// The report, for so many columns.
pub fn report(about: &About, gap: &Gap, width: usize) -> String {
    let mut out = format!("{} against {}, rank {}, {}\n\n", about.scenario, about.trace, about.rank, about.step);
    let share = gap.gap() as f64 / gap.predicted.0.max(1) as f64;
    let _ = writeln!(
        out,
        "Step: measured {}, predicted {}: {} ({:+.1} %).\n",
        millis(gap.measured),
        millis(gap.predicted),
        adds(gap.gap()),
        100.0 * share
    );
    let header = ["", "measured", "predicted", "ran at", "adds"];
    let _ = writeln!(
        out,
        "Where the time went, and what each part adds. The parts add up to the difference.\n\n{}\n",
        table(&header, rows(gap), 1)
    );
    let fill = |text: &str| {
        let options = textwrap::Options::new(width).initial_indent("  ").subsequent_indent("    ");
        textwrap::fill(text, options)
    };
    let found = findings(gap);
    if !found.is_empty() {
        let _ = writeln!(out, "What stands out\n");
        for (_, sentence) in found.iter().take(MOST) {
            let _ = writeln!(out, "{}", fill(sentence));
        }
        if let Some(left) = found.len().checked_sub(MOST).filter(|left| *left > 0) {
            let _ = writeln!(out, "  {left} smaller ones are in --json.");
        }
        out += "\n";
    }
    out += &textwrap::fill(
        "\"ran at\": time on the device of what both have, overlapped or not, as a multiple of the prediction. Measured and predicted: \
         each instant counts once, for what computes, else for the exchange that is awaited, else for the reason why nothing ran.",
        width,
    );
    out += "\n";
    for note in &about.notes {
        let _ = writeln!(out, "{}", textwrap::fill(note, width));
    }
    out
}

/// A row for each class, for waits, and for each reason why nothing ran.
fn rows(gap: &Gap) -> Vec<Vec<String>> {
    let row = |name: String, measured: Time, predicted: Time, ratio: Option<f64>| {
        let adds = adds(difference(predicted, measured));
        vec![name, millis(measured), millis(predicted), factor(ratio), adds]
    };
    let mut rows = vec![];
    let classes = gap.classes();
    for (class, sum) in &classes {
        rows.push(row(class.name().to_owned(), sum.measured.ran, sum.predicted.ran, sum.ratio()));
    }
    for (class, sum) in classes.iter().filter(|(_, sum)| sum.measured.waited + sum.predicted.waited > Time::ZERO) {
        rows.push(row(format!("{} waits for ranks", class.name()), sum.measured.waited, sum.predicted.waited, None));
    }
    for why in [Why::Host, Why::Latency] {
        let some = || gap.idle.iter().filter(|idle| idle.why == why);
        let (measured, predicted) = (some().map(|idle| idle.measured).sum(), some().map(|idle| idle.predicted).sum());
        let name = match why {
            Why::Host => "nothing ran: the host was late",
            Why::Latency => "nothing ran: launched, not yet at work",
        };
        rows.push(row(name.to_owned(), measured, predicted, None));
    }
    if gap.left_over != (Time::ZERO, Time::ZERO) {
        rows.push(row("left over from another step".to_owned(), gap.left_over.1, gap.left_over.0, None));
    }
    rows.push(row("step".to_owned(), gap.measured, gap.predicted, None));
    rows
}

/// What stands out, with what it adds \[ps\], the largest first.
pub fn findings(gap: &Gap) -> Vec<(i128, String)> {
    let least = (gap.measured.0 as f64 * WORTH) as i128;
    let mut found: Vec<(i128, String)> = vec![];
    for part in &gap.parts {
        let slow: i128 = part.slow.iter().map(|slow| i128::from(slow.took.0) - i128::from(slow.usual.0)).sum();
        if slow >= least {
            found.push((slow, slow_words(part)));
        }
        let rest = difference(part.predicted.ran, part.measured.ran) - if slow >= least { slow } else { 0 };
        if rest.abs() >= least {
            found.push((rest, part_words(part, rest)));
        }
        // What exchanges wait longer is told by the rank that they wait for.
        let waits = difference(part.predicted.waited, part.measured.waited);
        if waits <= -least {
            let words = format!("{}: {} waited less for other ranks than predicted.", adds(waits), name(part));
            found.push((waits, words));
        }
    }
    for idle in gap.idle.iter().filter(|idle| idle.gap().abs() >= least) {
        found.push((idle.gap(), idle_words(idle)));
    }
    for late in gap.late.iter().filter(|late| i128::from(late.waited.0) >= least) {
        let (class, waited) = (late.class.name(), millis(late.waited));
        let words = format!("{} {class} exchanges wait {waited} for rank {}, which comes last.", late.count, late.rank);
        found.push((i128::from(late.waited.0), words));
    }
    found.sort_by_key(|(adds, _)| std::cmp::Reverse(adds.abs()));
    found
}

/// A part by name, shape and place.
pub fn name(part: &Part) -> String {
    let shape = match part.shape {
        Shape::Matmul([m, n, k]) => format!(" [{m}, {k}]·[{k}, {n}]"),
        Shape::Attention { dims: [a, b, c, d], .. } => format!(" [{a}, {b}, {c}, {d}]"),
        Shape::Bytes(bytes) => format!(" of {}", crate::units::Bytes(bytes)),
        Shape::None => String::new(),
    };
    let pass = part.pass.map(|pass| format!(", {}", pass.name())).unwrap_or_default();
    let scope = if part.scope.is_empty() { String::new() } else { format!(", {}", part.scope) };
    format!("{}{shape}{pass}{scope}", part.name)
}

fn part_words(part: &Part, rest: i128) -> String {
    let (adds, name, count) = (adds(rest), name(part), part.measured.count.max(part.predicted.count));
    match part.matched {
        Match::Same | Match::Other => {
            let other = if part.matched == Match::Other { " (another shape or name in the trace)" } else { "" };
            let ratio = factor(part.ratio());
            let hint = if part.class.is_exchange() && part.measured.waited == Time::ZERO {
                ": slower, or waiting for a rank, which only traces of other ranks tell"
            } else {
                ""
            };
            format!("{adds}: {count} × {name}{other} took {ratio} of the prediction{hint}.")
        }
        Match::NotSeen => format!("{adds}: {count} × {name} were predicted and are not in the trace one by one."),
        Match::NotPredicted => {
            format!("{adds}: {count} × {name} are in the trace and nobody predicted them one by one.")
        }
    }
}

fn slow_words(part: &Part) -> String {
    let total: i128 = part.slow.iter().map(|slow| i128::from(slow.took.0) - i128::from(slow.usual.0)).sum();
    let longest = part.slow.iter().max_by_key(|slow| slow.took);
    let worst = longest.map(|slow| {
        let place = if slow.scope.is_empty() { String::new() } else { format!(" in {}", slow.scope) };
        format!("number {}{place} took {}, the median is {}", slow.at + 1, millis(slow.took), millis(slow.usual))
    });
    let (count, all) = (part.slow.len(), part.measured.count);
    format!(
        "{}: {count} of {all} × {} are far slower than the others: {}.",
        adds(total),
        name(part),
        worst.unwrap_or_default()
    )
}

fn idle_words(idle: &Idle) -> String {
    let before = |pass: Option<Pass>| match pass {
        Some(pass) => format!("before kernels of the {} pass", pass.name()),
        None => "at the end of the step, or before kernels of which nobody says the pass".to_owned(),
    };
    let (adds, place) = (adds(idle.gap()), before(idle.before));
    match idle.why {
        Why::Host => {
            let told = idle.host.iter().take(DOING).map(|(what, time)| format!("{} in {what}", millis(*time)));
            let told: Vec<String> = told.collect();
            let told = if told.is_empty() { String::new() } else { format!(" Meanwhile: {}.", told.join(", ")) };
            let (measured, predicted) = (millis(idle.measured), millis(idle.predicted));
            format!("{adds}: the host was late {place}: {measured}, predicted {predicted}.{told}")
        }
        Why::Latency => {
            let (measured, predicted) = (millis(idle.measured), millis(idle.predicted));
            format!("{adds}: nothing ran though it had been launched, {place}: {measured}, predicted {predicted}.")
        }
    }
}
