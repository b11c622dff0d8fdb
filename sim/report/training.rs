//! A whole training with its interruptions: the section that `run --for` adds.

use std::fmt;

use super::format::table_within;
use super::layout::{Interrupted, Money, Percentiles, Training, TriedInterval};
use super::text::Page;
use crate::units::{Span, thousands};

/// How many components the report lists unless all are asked for.
const LISTED: usize = 5;

/// A number in three digits with a letter for thousands and more.
pub(super) fn short(number: f64) -> String {
    let scales = [(1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    let (scale, letter) = scales.into_iter().find(|(scale, _)| number >= 0.9995 * scale).unwrap_or((1.0, ""));
    let value = number / scale;
    let digits = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{letter}")
}

/// The median, and what nine in ten trainings lie between.
pub(super) fn between(of: Percentiles, shown: impl Fn(f64) -> String) -> String {
    let [low, middle, high] = [of.p5, of.p50, of.p95].map(shown);
    if low == high { middle } else { format!("{middle} ({low} to {high})") }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e12 => format!("{:.2} TB", bytes / 1e12),
        bytes => format!("{:.2} GB", bytes / 1e9),
    }
}

fn per_cent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

fn count(number: f64) -> String {
    thousands(number.round() as u64)
}

fn steps(count: u64) -> String {
    if count == 1 { "step".to_owned() } else { format!("{} steps", thousands(count)) }
}

/// What the training comes to, in a line each: name and text.
pub(super) fn lines(of: &Training) -> Vec<(&'static str, String)> {
    let days = |days: f64| format!("{days:.1}");
    let mut lines = vec![];
    let without = short(of.tokens_without_interruptions);
    match of.is_fixed_time {
        true => {
            let time = days(of.days_without_interruptions);
            let trained = between(of.tokens, short);
            lines.push(("trained", format!("{trained} tokens in {time} days, {without} without interruptions")));
        }
        false => {
            let taken = between(of.days, days);
            let least = days(of.days_without_interruptions);
            lines.push(("takes", format!("{taken} days for {without} tokens, {least} days without interruptions")));
        }
    }
    lines.push(("goodput", format!("{} % of the time goes to steps that count", between(of.goodput, per_cent))));
    let every = Span(of.mean_hours_between * 3_600.0);
    let mut interruptions = format!("{} unexpected, one every {every} while training", between(of.unexpected, count));
    if of.planned.p95 > 0.0 {
        interruptions += &format!("; {} planned", between(of.planned, count));
    }
    lines.push(("interruptions", format!("{interruptions} (rates: {})", of.rates)));
    lines.push(("checkpoint", checkpoint(of)));
    lines.push(("money", of.money.as_ref().map_or_else(unpriced, money)));
    lines
}

fn unpriced() -> String {
    "the machine has no price: write one into the topology's [price]".to_owned()
}

fn money(of: &Money) -> String {
    let (currency, hour) = (&of.currency, of.per_chip_hour);
    let (total, least) = (between(of.total, short), short(of.without_interruptions));
    format!("{total} {currency} at {hour} a chip-hour, {least} without interruptions")
}

/// What is saved, how often, and what that takes.
fn checkpoint(of: &Training) -> String {
    let saved = &of.checkpoint;
    let (held, interval) = (size(saved.bytes), Span(saved.every_s));
    let every = format!("{held} every {}, {interval} of training", steps(saved.every_steps));
    let how = match saved.written_after_s > 0.0 {
        true => format!(
            "training stops for {} and the checkpoint counts {} later",
            Span(saved.blocked_s),
            Span(saved.written_after_s)
        ),
        false => format!("training stops for {}", Span(saved.blocked_s)),
    };
    let best = match (saved.every_is_best, saved.every_steps == of.best_every_steps) {
        (true, _) => ", the best interval".to_owned(),
        (false, true) => ", which is the best interval".to_owned(),
        (false, false) => {
            format!("; the best is every {}, {}", steps(of.best_every_steps), Span(of.best_every_s))
        }
    };
    format!("{every}; {how}{best}. Loading takes {}", Span(saved.load_s))
}

/// Rows of the table of time: what, mean, share.
pub(super) fn time(of: &Training) -> Vec<Vec<String>> {
    let all: f64 = of.time.iter().map(|spent| spent.mean_s).sum();
    let shown = of.time.iter().filter(|spent| spent.mean_s > 0.0);
    let row = |(kind, seconds): (&str, f64)| {
        vec![
            kind.to_owned(),
            Span(seconds).to_string(),
            format!("{:.2} %", 100.0 * seconds / all.max(f64::MIN_POSITIVE)),
        ]
    };
    shown.map(|spent| row((spent.kind, spent.mean_s))).collect()
}

/// Rows of the table of components, the most frequent first.
pub(super) fn components(of: &Training) -> Vec<Vec<String>> {
    let mut all: Vec<&Interrupted> = of.interruptions.iter().collect();
    all.sort_by(|one, other| other.mean.total_cmp(&one.mean));
    let row = |one: &&Interrupted| {
        let Percentiles { p5, p50, p95 } = one.percentiles;
        vec![one.component.clone(), format!("{:.1}", one.mean), count(p5), count(p50), count(p95)]
    };
    all.iter().map(row).collect()
}

/// Rows of the table of intervals.
pub(super) fn intervals(of: &Training) -> Vec<Vec<String>> {
    let row = |tried: &TriedInterval| {
        vec![
            steps(tried.every_steps),
            Span(tried.every_s).to_string(),
            format!("{:.2} %", 100.0 * tried.expected_goodput),
            format!("{:.2} %", 100.0 * tried.goodput),
        ]
    };
    of.intervals.iter().map(row).collect()
}

/// Heads of the three tables.
pub(super) const TIME: [&str; 3] = ["", "mean", "of the time"];
pub(super) const COMPONENTS: [&str; 5] = ["interrupted by", "mean", "5 %", "median", "95 %"];
pub(super) const INTERVALS: [&str; 4] = ["checkpoint every", "of training", "expected goodput", "drawn"];

/// How many trainings the figures are of, in a sentence.
pub(super) fn sample(of: &Training) -> String {
    format!("Medians of {} trainings that were drawn, and what nine in ten of them lie between.", thousands(of.draws))
}

/// The section of the report.
pub(super) fn text(page: &mut Page, of: &Training, verbose: bool) -> fmt::Result {
    page.heading("The whole training, interrupted")?;
    page.sentence(&sample(of))?;
    for (label, text) in lines(of) {
        page.line(label, &text)?;
    }
    page.gap()?;
    page.lines(&table_within(&TIME, time(of), &[1, 2], page.width()))?;
    let mut rows = components(of);
    let all = rows.len();
    rows.truncate(if verbose { all } else { LISTED });
    page.gap()?;
    page.lines(&table_within(&COMPONENTS, rows, &[1, 2, 3, 4], page.width()))?;
    if all > LISTED && !verbose {
        page.sentence(&format!("{} more are in --verbose and --json.", all - LISTED))?;
    }
    page.gap()?;
    page.lines(&table_within(&INTERVALS, intervals(of), &[1, 2, 3], page.width()))?;
    if of.assumptions.is_empty() {
        return Ok(());
    }
    page.heading("Taken for what [failures] and [checkpoint] leave out")?;
    of.assumptions.iter().try_for_each(|line| page.item(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.5, 9.999, 999.4, 1_000.0, 54_321.0, 999_600.0, 2e12].map(short);
        assert_eq!(shown, ["0.50", "10.0", "999", "1.00k", "54.3k", "1.00M", "2.00T"]);
    }
}
