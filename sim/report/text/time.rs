//! Where a step's time goes: by kind, then by kernel, collective and message.

use std::fmt;

use super::super::format::{percent, table_within};
use super::page::Page;
use crate::scenario::Prediction;
use crate::scenario::predict::Part;
use crate::units::Time;

/// How many parts the report lists unless all are asked for.
const LISTED: usize = 10;

pub(super) fn time(page: &mut Page, answer: &Prediction, verbose: bool) -> fmt::Result {
    let (step, split) = (answer.step, answer.breakdown);
    page.heading("Time of one step")?;
    let staged = answer.classes.len() > 1;
    let (bubble, otherwise) = if answer.waits_for_ranks() {
        (split.bubble, split.waiting)
    } else {
        (Time::ZERO, split.bubble + split.waiting)
    };
    let kinds = [
        ("compute", split.compute),
        ("exposed communication", split.exposed_communication),
        ("waiting for other ranks", bubble),
        ("waiting for the host", split.host_bound),
        ("waiting for events", otherwise),
    ];
    let row =
        |(name, time): (&str, Time)| vec![name.to_owned(), time.to_string(), format!("{:.1} %", percent(time, step))];
    // What takes no time to speak of says nothing, but for what people look for.
    let sought = ["compute", "exposed communication"];
    let shown = |(name, time): &(&str, Time)| percent(*time, step) >= 0.05 || sought.contains(name);
    let rows = kinds.into_iter().filter(shown).map(row).collect();
    page.lines(&table_within(&["", "time", "of step"], rows, &[1, 2], page.width()))?;
    page.gap()?;
    let listed = if verbose { answer.parts.len() } else { LISTED };
    let rows = answer.parts.iter().take(listed).map(|part| cells(part, step)).collect();
    let header = ["part", "kernel", "count", "busy", "of step", "exposed", "cost is"];
    page.lines(&table_within(&header, rows, &[2, 3, 4, 5], page.width()))?;
    if answer.parts.len() > listed {
        page.sentence(&format!("{} more are in --verbose and --json.", answer.parts.len() - listed))?;
    }
    if staged {
        page.sentence(
            "Counts are those of one rank of each stage together. Times and shares are the mean of all ranks.",
        )?;
    }
    Ok(())
}

fn cells(part: &Part, step: Time) -> Vec<String> {
    let exposed = part.group == "collective" || part.group == "communication";
    vec![
        part.group.to_owned(),
        part.name.clone(),
        part.count.to_string(),
        part.busy.to_string(),
        format!("{:.1} %", percent(part.busy, step)),
        if exposed { format!("{:.1} %", percent(part.exposed, step)) } else { String::new() },
        part.basis.label().to_owned(),
    ]
}
