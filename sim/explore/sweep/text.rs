//! A sweep as a person reads it: the best rows, how many fit, and why others are refused.

use super::grid::Grid;
use super::row::Row;
use crate::explore::words::{gib, percent, thousands};
use crate::files::one_line;
use crate::report::text::{table as columns, table_within};
use crate::scenario::predict::Verdict;
use crate::units::{Bytes, Time};

/// How many reasons of refusals are shown.
const REASONS: usize = 5;

/// Writes the report of rows, of which the best so many are shown.
pub fn report(grid: &Grid, rows: &[Row], best: usize, width: usize) -> String {
    let mut ranked: Vec<&Row> = rows.iter().filter(|row| fits(row)).collect();
    let rate = |row: &Row| row.tokens_per_second_per_chip.unwrap_or(0.0);
    // Of rows that are as fast, the first of the grid comes first.
    ranked.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    ranked.truncate(best);
    let mut out = format!("{}\n{}\n", grid.base().description, counts(rows));
    if !ranked.is_empty() {
        out += &format!("\nBest by tokens per second and chip, of those that fit\n{}\n", table(grid, &ranked, width));
        if let Some(name) = ranked.iter().find_map(|row| row.mfu_convention.as_deref()) {
            out += &format!("\n  MFU by the convention {name}. To spare: device memory that is left.\n");
        }
    }
    out + &reasons(rows, width)
}

/// Whether a plan runs, as far as is known.
fn fits(row: &Row) -> bool {
    [Verdict::Yes, Verdict::Perhaps].iter().any(|verdict| row.verdict == verdict.to_string())
}

/// How many rows have which verdict.
fn counts(rows: &[Row]) -> String {
    let count = |what: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| what(row)).count();
    let (refused, fit) = (count(&Row::is_refused), count(&fits));
    let unknown = count(&|row| row.verdict == Verdict::Unknown.to_string());
    let fewer = rows.len() - refused - fit - unknown;
    let one = |count: usize, one: &'static str, more: &'static str| (count, if count == 1 { one } else { more });
    let told =
        [one(fit, "fits", "fit"), one(fewer, "does not fit", "do not fit"), (unknown, "unknown"), (refused, "refused")];
    let told = told.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let runs = if rows.len() == 1 { "run" } else { "runs" };
    format!("{} {runs}: {}", rows.len(), told.collect::<Vec<_>>().join(", "))
}

/// Names of the columns of figures.
const FIGURES: [&str; 6] = ["step time", "80 % interval", "tokens/s/chip", "MFU", "to spare", "fits"];

/// Rows with a column for each key. Where the page is too narrow for that, the values follow in a table of their own.
fn table(grid: &Grid, rows: &[&Row], width: usize) -> String {
    let keys = short(&grid.keys().collect::<Vec<_>>());
    let values = |row: &Row| grid.shown(row.index).iter().map(|value| one_line(value)).collect::<Vec<_>>();
    let wide = |row: &&Row| [vec![row.index.to_string()], values(row), figures(row).to_vec()].concat();
    let header: Vec<&str> = ["row"].into_iter().chain(keys.iter().map(String::as_str)).chain(FIGURES).collect();
    let text = columns(&header, rows.iter().map(wide).collect(), keys.len() + 1);
    if text.lines().all(|line| line.chars().count() <= width) {
        return text;
    }
    let narrow = |row: &&Row| [vec![row.index.to_string()], figures(row).to_vec()].concat();
    let header: Vec<&str> = ["row"].into_iter().chain(FIGURES).collect();
    let figures = columns(&header, rows.iter().map(narrow).collect(), 0);
    let pairs = |row: &&Row| {
        let pairs = keys.iter().zip(values(row)).map(|(key, value)| format!("{key} = {value}"));
        vec![row.index.to_string(), pairs.collect::<Vec<_>>().join(", ")]
    };
    let pairs = table_within(&["row", "varied"], rows.iter().map(pairs).collect(), &[0], width);
    format!("{figures}\n\n{pairs}")
}

/// Keys without their tables, as far as they are told apart without them.
fn short(keys: &[&str]) -> Vec<String> {
    let last = |key: &str| one_line(key.rsplit('.').next().unwrap_or(key));
    let alike = |key: &str| keys.iter().filter(|other| last(other) == last(key)).count() > 1;
    keys.iter().map(|key| if alike(key) { one_line(key) } else { last(key) }).collect()
}

fn figures(row: &Row) -> [String; 6] {
    let spare = row.headroom_bytes.and_then(|bytes| u64::try_from(bytes).ok());
    [
        time(row.step_time_s),
        interval(time(row.step_time_low_s), &time(row.step_time_high_s)),
        row.tokens_per_second_per_chip.map_or("–".to_owned(), |rate| thousands(rate.round() as u64)),
        row.mfu.map_or("–".to_owned(), percent),
        spare.map_or("–".to_owned(), |bytes| gib(Bytes(bytes))),
        row.verdict.clone(),
    ]
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or("–".to_owned(), |seconds| Time::from_seconds(seconds).to_string())
}

/// `768 to 978 ms`, or `998 ms to 1.08 s`.
fn interval(low: String, high: &str) -> String {
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} to {high}"),
        _ => format!("{low} to {high}"),
    }
}

/// Why combinations are refused: the most frequent reasons, each with the first row that has it.
fn reasons(rows: &[Row], width: usize) -> String {
    let mut found: Vec<(&str, usize, u64)> = vec![];
    for row in rows {
        let Some(reason) = row.refused_reason.as_deref() else { continue };
        match found.iter_mut().find(|(known, ..)| *known == reason) {
            Some((_, count, _)) => *count += 1,
            None => found.push((reason, 1, row.index)),
        }
    }
    if found.is_empty() {
        return String::new();
    }
    found.sort_by_key(|&(_, count, first)| (std::cmp::Reverse(count), first));
    let cells =
        |(reason, count, first): &(&str, usize, u64)| vec![count.to_string(), first.to_string(), one_line(reason)];
    let shown = found.iter().take(REASONS).map(cells).collect();
    let mut out = format!("\nRefused\n{}\n", table_within(&["runs", "first row", "because"], shown, &[0, 1], width));
    if found.len() > REASONS {
        out += &format!("  and for {} other reasons\n", found.len() - REASONS);
    }
    out
}
