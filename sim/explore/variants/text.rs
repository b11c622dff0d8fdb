//! Ceilings side by side, as a person reads them: a row for each variant.

use super::{Ceilings, Row};
use crate::explore::Point;
use crate::explore::ceiling::text::{ends, subject};
use crate::explore::ceiling::{Ceiling, End};
use crate::explore::fixed::Fixed;
use crate::explore::words::{gib, percent, thousands};
use crate::report::text::table;
use crate::scenario::Scenario;

/// Writes the table.
pub fn report(scenario: &Scenario, answer: &Ceilings) -> String {
    let (header, rows) = columns(answer);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut out = format!("{}\n{}\n\n{}\n", scenario.description, subject(scenario), table(&header, rows, 1));
    for (name, remark) in remarks(answer) {
        out += &format!("\n  {name}: {remark}");
    }
    if !remarks(answer).is_empty() {
        out += "\n";
    }
    out += &format!("\n  {}\n", legend(answer));
    for line in fixed(scenario, answer) {
        out += &format!("  {line}\n");
    }
    out
}

/// Columns and rows.
pub(super) fn columns(answer: &Ceilings) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header = [answer.along, "ceiling", "safe up to", "step time", "MFU", "reserved", "returned", "bound by"]
        .map(str::to_owned)
        .to_vec();
    if let Some(common) = answer.common {
        header.push(format!("at {}: step time", thousands(common)));
        header.extend(["tokens/s per chip", "MFU", "reserved", "bound by"].map(str::to_owned));
    }
    let row = |row: &Row| {
        let mut cells = vec![row.name.clone()];
        match &row.ceiling {
            Ok(ceiling) => cells.extend(ceiling_cells(ceiling)),
            Err(_) => cells.push("refused".to_owned()),
        }
        cells.resize(8, "–".to_owned());
        if answer.common.is_some() {
            cells.extend(row.common.as_ref().map_or(vec![], common_cells));
            cells.resize(13, "–".to_owned());
        }
        cells
    };
    (header, answer.rows.iter().map(row).collect())
}

fn ceiling_cells(ceiling: &Ceiling) -> Vec<String> {
    let Some(top) = &ceiling.longest else { return vec!["none".to_owned()] };
    let more = if matches!(ceiling.end, End::Asked(_)) { " or more" } else { "" };
    vec![
        format!("{}{more}", thousands(top.sequence)),
        ceiling.sure.as_ref().map_or("none".to_owned(), |sure| thousands(sure.sequence)),
        top.step.to_string(),
        percent(top.mfu),
        gib(top.memory.report.peak_reserved),
        top.memory.report.retries.to_string(),
        top.bound.to_owned(),
    ]
}

fn common_cells(point: &Point) -> Vec<String> {
    vec![
        point.step.to_string(),
        format!("{:.0}", point.rate),
        percent(point.mfu),
        gib(point.memory.report.peak_reserved),
        point.bound.to_owned(),
    ]
}

/// What the rows cannot say: why one is refused, what else was changed, what ends a ceiling other than memory.
pub(super) fn remarks(answer: &Ceilings) -> Vec<(&str, String)> {
    let mut list = vec![];
    for row in &answer.rows {
        let name = row.name.as_str();
        list.extend(row.note.iter().map(|note| (name, note.clone())));
        match &row.ceiling {
            Err(reason) => list.push((name, format!("refused: {reason}"))),
            Ok(ceiling) if ceiling.longest.is_none() || ceiling.end != End::Memory => {
                list.push((name, ends(ceiling)));
            }
            Ok(_) => {}
        }
    }
    list
}

/// What is the same in every row, and what follows from that.
pub(super) fn fixed(scenario: &Scenario, answer: &Ceilings) -> Vec<String> {
    let fixed = Fixed::of(scenario);
    let micro_batches = if fixed.compiled { "batch.micro" } else { "batch.accumulation" };
    let follows = answer.tiles.then(|| format!("follows: data-parallel ranks and {micro_batches}"));
    [format!("fixed: {}", fixed.words())].into_iter().chain(follows).collect()
}

/// What the columns mean.
pub(super) fn legend(answer: &Ceilings) -> String {
    match answer.common {
        Some(common) => format!(
            "left: at each variant's own ceiling; right: all variants at {} tokens, the shortest ceiling\n  \
             returned: how often in a step the allocator returns its cache to the device; the step time includes what that costs",
            thousands(common)
        ),
        None if answer.rows.iter().all(|row| row.ceiling.is_err()) => {
            "every variant is refused, for the reasons above".to_owned()
        }
        None => "no variant fits at any length tried".to_owned(),
    }
}
