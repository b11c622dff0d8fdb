//! A check for people: a line per lane and hardware, what was left out and why, and the worst rows.

use std::fmt::Write as _;

use super::case::{Case, Judged, Pair};
use super::check::Outcome;
use super::history;
use super::map::Reason;
use super::picks::{self, MARGIN};
use super::summary::{ALL, Errors, Group, Trusted, by_confidence, worst};
use super::threshold::Broken;
use crate::report::text::{table, table_within};
use crate::scenario::Prediction;

/// Worst rows and reasons that are listed.
const LISTED: usize = 10;

fn percent(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn signed(value: f64) -> String {
    format!("{:+.1} %", 100.0 * value)
}

fn step(errors: Option<Errors>) -> [String; 3] {
    let shown = |f: fn(&Errors) -> String| errors.as_ref().map_or_else(|| "·".to_owned(), f);
    [shown(|e| percent(e.median)), shown(|e| percent(e.p90)), shown(|e| signed(e.bias))]
}

/// Memory by its kind and MFU by its convention, where a group has them.
fn figures(g: &Group) -> Vec<Vec<String>> {
    let memory = [
        ("reserved memory".to_owned(), g.reserved),
        ("allocated memory".to_owned(), g.allocated),
        ("memory of a kind not stated, against reserved".to_owned(), g.unstated),
    ];
    let mfu = g.mfu_by_convention.iter().map(|(name, errors)| (format!("MFU, {name}"), Some(*errors)));
    let stated = memory.into_iter().chain(mfu).filter_map(|(name, errors)| Some((name, errors?)));
    stated
        .map(|(name, e)| {
            let [median, p90, bias] = step(Some(e));
            vec![g.lane.clone(), g.hardware.clone(), name, e.rows.to_string(), median, p90, bias]
        })
        .collect()
}

/// So few runs are listed one by one: a median would say nothing.
const FEW: usize = 5;

/// Each run with its figures.
fn few(outcome: &Outcome, groups: &[Group], width: usize) -> String {
    let mut out = String::new();
    for row in &outcome.judged {
        let _ = writeln!(out, "{}", row.id);
        let rows = figures_of(row)
            .into_iter()
            .map(|(name, [measured, predicted, error])| vec![name.to_owned(), measured, predicted, error]);
        let _ = writeln!(out, "{}", table(&["", "measured", "predicted", "error"], rows.collect(), 1));
        if let Some(inside) = row.inside {
            let words = if inside { "inside" } else { "outside" };
            let _ = writeln!(out, "  The measured step is {words} the 80 % interval. Predicted: {}.", shares(row));
        }
        let _ = writeln!(out);
    }
    let all = |count: fn(&Group) -> usize| groups.iter().filter(|group| group.lane != ALL).map(count).sum::<usize>();
    let _ = writeln!(out, "Checked: {} of {} runs.", all(|group| group.covered), all(|group| group.rows));
    out += &history::text(&outcome.judged);
    choices(&mut out, outcome, groups, width);
    reasons(&mut out, outcome, width);
    out
}

/// How far predictions are off by how much they are said to be worth.
fn trusted(outcome: &Outcome) -> String {
    let row = |of: &Trusted| {
        let [median, p90, bias] = step(Some(of.step));
        let inside = format!("{:.0} %", 100.0 * of.inside);
        vec![of.confidence.to_string(), of.step.rows.to_string(), median, p90, bias, inside]
    };
    let rows: Vec<Vec<String>> = by_confidence(outcome).iter().map(row).collect();
    let header = ["confidence", "rows", "step time", "p90", "bias", "in interval"];
    if rows.is_empty() { String::new() } else { format!("\n{}\n", table(&header, rows, 1)) }
}

/// What was measured, predicted, and the error of each figure.
fn figures_of(judged: &Judged) -> Vec<(&'static str, [String; 3])> {
    let gib = 1.0 / f64::from(1 << 30);
    let figures = [
        ("step time", judged.step, 1.0, "s"),
        ("reserved", judged.reserved, gib, "GiB"),
        ("allocated", judged.allocated, gib, "GiB"),
        ("memory, kind not stated (against reserved)", judged.unstated, gib, "GiB"),
        ("MFU", judged.mfu, 100.0, "%"),
    ];
    let mut rows: Vec<(&'static str, [String; 3])> = vec![];
    for (name, pair, scale, unit) in figures {
        let shown = |value: f64| format!("{:.3} {unit}", value * scale);
        rows.extend(pair.map(|p| (name, [shown(p.measured), shown(p.predicted), signed(p.error())])));
    }
    if judged.memory_verdict.1 || rows.is_empty() {
        let word = |died: bool| if died { "out of memory" } else { "fits" }.to_owned();
        let likely = format!("{:.0} % likely to fit", 100.0 * judged.room.chance);
        rows.push(("verdict", [word(judged.memory_verdict.1), word(judged.memory_verdict.0), likely]));
    }
    rows
}

/// The check, for so many columns where names are no longer.
pub fn report(outcome: &Outcome, groups: &[Group], width: usize) -> String {
    if (1..=FEW).contains(&outcome.judged.len()) {
        return few(outcome, groups, width);
    }
    let mut out = textwrap::fill(
        "Median and 90th percentile of the absolute error, and the median signed error (bias). A configuration counts once.",
        width,
    );
    out += "\n\n";
    let rows = groups.iter().filter(|g| g.rows > 0).map(|g| {
        let [median, p90, bias] = step(g.step);
        vec![
            g.lane.clone(),
            g.hardware.clone(),
            format!("{} of {}", g.covered, g.rows),
            g.configurations.to_string(),
            median,
            p90,
            bias,
            g.inside.map_or_else(|| "·".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            format!("{} of {}", g.out_of_memory.1, g.out_of_memory.0),
            g.false_alarms.to_string(),
        ]
    });
    let header = [
        "lane",
        "hardware",
        "covered",
        "configs",
        "step time",
        "p90",
        "bias",
        "in interval",
        "OOM foreseen",
        "false OOM",
    ];
    let _ = writeln!(out, "{}", table(&header, rows.collect(), 2));
    out += &trusted(outcome);
    let others: Vec<Vec<String>> = groups.iter().flat_map(figures).collect();
    if !others.is_empty() {
        let header = ["lane", "hardware", "figure", "rows", "median", "p90", "bias"];
        let _ = writeln!(out, "\n{}", table(&header, others, 3));
    }
    out += &history::text(&outcome.judged);
    choices(&mut out, outcome, groups, width);
    reasons(&mut out, outcome, width);
    let rows = worst(outcome, LISTED);
    if !rows.is_empty() {
        let _ = writeln!(out, "\nFurthest off in step time");
        let lines = rows.iter().map(|row| {
            let pair = row.step.expect("worst() takes rows with a step time");
            vec![
                row.id.clone(),
                row.grade.clone(),
                format!("{:.3} s", pair.measured),
                format!("{:.3} s", pair.predicted),
                signed(pair.error()),
                shares(row),
            ]
        });
        let header = ["receipt", "grade", "measured", "predicted", "error", "where the predicted step goes"];
        let _ = writeln!(out, "{}", table_within(&header, lines.collect(), &[2, 3, 4], width));
    }
    out
}

/// How well layouts of one run are chosen between, and where the pick is not among the best.
fn choices(out: &mut String, outcome: &Outcome, groups: &[Group], width: usize) {
    let Some(picks) = groups.last().and_then(|all| all.picks) else { return };
    let near = percent(MARGIN).replace(".0", "");
    let mut said = format!(
        "{} groups of receipts differ in nothing but layout. The layout that is predicted to be the fastest is within {near} of the \
         measured best in {} of them ({}; a random pick in {}).",
        picks.groups,
        picks.right,
        percent(picks.best()),
        percent(picks.chance / picks.groups as f64),
    );
    if let Some(order) = picks.order() {
        let (all, right) = (picks.pairs, picks.ordered);
        let _ = write!(
            said,
            " Of {all} pairs more than {near} apart, {right} ({}) are in the measured order.",
            percent(order)
        );
    }
    if picks.unfit > 0 {
        let _ = write!(said, " {} layouts that ran are predicted not to fit, and never picked.", picks.unfit);
    }
    let _ = writeln!(out, "\nLayouts\n{}", textwrap::fill(&said, width));
    let rows: Vec<&Judged> = outcome.judged.iter().collect();
    let mut wrong: Vec<_> = picks::groups(&rows).into_iter().filter(|group| !group.is_right()).collect();
    let lost = |group: &picks::Group<'_>| group.pick().map_or(f64::INFINITY, |pick| group.behind(pick));
    wrong.sort_by(|a, b| lost(b).total_cmp(&lost(a)));
    let id = |layout: &picks::Layout<'_>| layout.rows.first().map_or_else(String::new, |row| row.id.clone());
    let lines: Vec<Vec<String>> = (wrong.iter().take(LISTED))
        .map(|group| {
            let (pick, lost) = match group.pick() {
                Some(pick) => (id(pick), format!("{} slower", percent(group.behind(pick)))),
                None => ("none: all are predicted not to fit".to_owned(), "·".to_owned()),
            };
            vec![group.0.first().map_or_else(String::new, id), pick, lost]
        })
        .collect();
    if !lines.is_empty() {
        let header = ["measured to be the fastest", "predicted to be the fastest", "which is"];
        let _ = writeln!(out, "{}", table_within(&header, lines, &[2], width));
    }
    if wrong.len() > LISTED {
        let _ = writeln!(out, "  and {} more: see --json", wrong.len() - LISTED);
    }
}

fn shares(row: &Judged) -> String {
    let names = ["compute", "exposed comm.", "host", "waiting"];
    let broad = names.iter().zip(row.breakdown).filter(|(_, share)| *share >= 0.005);
    broad.map(|(name, share)| format!("{name} {:.0} %", 100.0 * share)).collect::<Vec<_>>().join(", ")
}

fn reasons(out: &mut String, outcome: &Outcome, width: usize) {
    let reasons = outcome.reasons();
    for (title, wanted) in [("Not covered", false), ("About something else", true)] {
        let these: Vec<_> = reasons
            .iter()
            .filter(|(reason, _)| match reason {
                Reason::Outside(_) => wanted,
                Reason::Uncovered(_) | Reason::Panicked(_) => !wanted,
                Reason::Contradiction(_) => false,
            })
            .collect();
        if these.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{title}: {} rows", these.iter().map(|(_, rows)| rows.len()).sum::<usize>());
        for (reason, rows) in these.iter().take(LISTED) {
            let first = rows.first().map_or("", |row| row.place.as_str());
            let first_line = format!("  {:5}  ", rows.len());
            let options = textwrap::Options::new(width).initial_indent(&first_line).subsequent_indent("         ");
            let reason = textwrap::fill(&format!("{} (first: {first})", reason.words()), options.break_words(false));
            let _ = writeln!(out, "{reason}");
        }
        if these.len() > LISTED {
            let rest: usize = these[LISTED..].iter().map(|(_, rows)| rows.len()).sum();
            let _ = writeln!(out, "  {rest:5}  for {} other reasons: see --json", these.len() - LISTED);
        }
    }
    let odd: Vec<_> = outcome.skipped.iter().filter(|row| matches!(row.reason, Reason::Contradiction(_))).collect();
    if !odd.is_empty() {
        let _ = writeln!(out, "\nRows that contradict themselves, left out: {}", odd.len());
        for row in odd.iter().take(LISTED) {
            let _ = writeln!(out, "  {}: {}: {}", row.place, row.id, row.reason.words());
        }
        if odd.len() > LISTED {
            let _ = writeln!(out, "  and {} more: see --json", odd.len() - LISTED);
        }
    }
    if !outcome.faults.is_empty() {
        let _ = writeln!(out, "\nLines that are no receipts, or have keys that are not read: {}", outcome.faults.len());
        for fault in outcome.faults.iter().take(LISTED) {
            let _ = writeln!(out, "  {}:{}: {}", fault.file, fault.line, fault.problem);
        }
        if outcome.faults.len() > LISTED {
            let _ = writeln!(out, "  and {} more: see --json", outcome.faults.len() - LISTED);
        }
    }
}

/// Bounds that do not hold, each with the receipt that is furthest off where one alone breaks it.
pub fn broken(broken: &[Broken], outcome: &Outcome) -> String {
    let mut out = String::new();
    for b in broken {
        let counted = b.figure.starts_with("out_of_memory");
        let shown = |value: f64| if counted { format!("{value:.0}") } else { format!("{:.1} %", 100.0 * value) };
        let whose = match b.lane == ALL && b.hardware == ALL {
            true => "all receipts".to_owned(),
            false => format!("{} on {}", b.lane, b.hardware),
        };
        let bound = if b.least { "at least" } else { "at most" };
        let verdict = match b.value {
            Some(value) => format!("is {}, and {bound} {} is allowed", shown(value), shown(b.bound)),
            None => "is unknown: no receipt has it".to_owned(),
        };
        let furthest = furthest(b, outcome).map_or_else(String::new, |receipt| format!(": {receipt}"));
        let _ = writeln!(out, "{} of {whose} {verdict}{furthest}", b.figure);
    }
    out
}

/// The receipt that a bound on the largest error is broken by, with both figures.
fn furthest(broken: &Broken, outcome: &Outcome) -> Option<String> {
    let pair: fn(&Judged) -> Option<Pair> = match broken.figure {
        "step_time.max" => |row| row.step,
        "reserved.max" => |row| row.reserved,
        "allocated.max" => |row| row.allocated,
        "memory.max" => |row| row.unstated,
        _ => return None,
    };
    let among = |row: &&Judged| {
        (broken.lane == ALL || broken.lane == row.lane) && (broken.hardware == ALL || broken.hardware == row.hardware)
    };
    let rows = outcome.judged.iter().filter(among).filter_map(|row| Some((row, pair(row)?)));
    let (row, pair) = rows.max_by(|a, b| a.1.error().abs().total_cmp(&b.1.error().abs()))?;
    let shown = |value: f64| match broken.figure {
        "step_time.max" => format!("{value:.3} s"),
        _ => format!("{:.2} GiB", value / f64::from(1 << 30)),
    };
    Some(format!("{} is predicted at {}, measured at {}", row.id, shown(pair.predicted), shown(pair.measured)))
}

/// One receipt: what was assumed, and each figure beside its measurement.
pub fn row(case: &Case, answer: &Prediction) -> String {
    let judged = case.judge(answer);
    let mut out = format!("{}\n{}\n", case.id, case.measured().source);
    if !case.assumptions.is_empty() {
        let _ = writeln!(out, "\nNot stated by the row, and taken from the framework's table");
        let rows = case.assumptions.iter().map(|a| vec![format!("{} = {}", a.key, a.value), a.source.clone()]);
        let _ = writeln!(out, "{}", table(&["key", "source"], rows.collect(), 2));
    }
    let figures = figures_of(&judged).into_iter();
    let rows =
        figures.map(|(name, [measured, predicted, error])| vec![name.to_owned(), measured, predicted, error]).collect();
    let _ = writeln!(out, "\n{}", table(&["", "measured", "predicted", "error"], rows, 1));
    if let Some(inside) = judged.inside {
        let (low, high) = answer.interval;
        let verdict = if inside { "inside" } else { "OUTSIDE" };
        let _ = writeln!(out, "\n  the measured step lies {verdict} the predicted interval, {low} to {high}");
    }
    out
}
