//! Causes as a person reads them.

use std::fmt;

use super::{Cause, Row, Why};
use crate::report::text::{Page, gib, table_within};
use crate::scenario::Scenario;

/// A table of causes.
pub fn report(scenario: &Scenario, why: &Why, (width, colour): (usize, bool)) -> String {
    let mut page = Page::new(width, colour);
    // Writing to a string does not fail.
    let _ = write(&mut page, scenario, why);
    page.text()
}

fn write(page: &mut Page, scenario: &Scenario, why: &Why) -> fmt::Result {
    page.title(&scenario.description)?;
    let share = |row: &Row| 100.0 * row.time.seconds() / why.step.seconds();
    let peak = why.rows.iter().find(|row| row.cause == Cause::Peak).map_or(0.0, share);
    page.heading("Where a step's time goes: the parts sum to the step")?;
    let rows = why
        .rows
        .iter()
        .map(|row| vec![name(&row.cause), row.time.to_string(), format!("{:.1} %", share(row)), row.detail.clone()]);
    let all = vec!["the step".to_owned(), why.step.to_string(), String::new(), String::new()];
    let rows = rows.chain([all]).collect();
    page.lines(&table_within(&["", "time", "of step", "because"], rows, &[1, 2], page.width()))?;
    let (total, active) = why.parameters;
    let counted = match total == active {
        true => "every parameter".to_owned(),
        false => format!("{} parameters that a token meets, of {}", billions(active), billions(total)),
    };
    page.sentence(&format!(
        "{peak:.1} % of the step is arithmetic that the model needs, at the chip's peak. It counts {counted}, and all pairs of tokens in \
         attention, as MFU does."
    ))?;
    page.heading("What helps most against each, one change at a time, simulated")?;
    let helped = why.rows.iter().filter_map(|row| Some((row, row.best.as_ref()?)));
    let rows: Vec<Vec<String>> = helped
        .map(|(row, best)| {
            vec![
                name(&row.cause),
                best.change.clone(),
                format!("{:+.1} %", 100.0 * (best.rate / why.rate - 1.0)),
                best.step.to_string(),
                gib(best.device_total),
            ]
        })
        .collect();
    if rows.is_empty() {
        return page.sentence("No single change that was tried raises throughput by 0.5 % and fits.");
    }
    let header = ["against", "change", "tokens/s", "step", "on the device"];
    page.lines(&table_within(&header, rows, &[2, 3, 4], page.width()))?;
    page.sentence("A change may move more than the part that it stands beside. Those of the batch change what is computed in a step.")
}

fn name(cause: &Cause) -> String {
    match cause {
        Cause::Peak => "the model's FLOPs at peak".to_owned(),
        Cause::Beyond => "FLOPs beyond the model's".to_owned(),
        Cause::Repeated => "the same on several chips".to_owned(),
        Cause::Matmuls => "matmuls below peak".to_owned(),
        Cause::Attention => "attention below peak".to_owned(),
        Cause::Memory => "memory-bound kernels".to_owned(),
        Cause::Recompute => "recompute".to_owned(),
        Cause::Optimizer => "optimizer".to_owned(),
        Cause::Exchange { group, .. } => format!("exchanges over {group}"),
        Cause::Copies => "copies".to_owned(),
        Cause::Host => "the host".to_owned(),
        Cause::Bubble => "pipeline bubble".to_owned(),
    }
}

fn billions(count: u64) -> String {
    format!("{:.2} B", count as f64 / 1e9)
}
