//! Schedules in PyTorch's CSV (`_load_csv`, `_dump_csv`): a line for each rank, a cell for each action.
//!
//! Empty cells are idle slots and mean nothing. A file of computations alone becomes a [`Schedule`]; one that holds
//! communication too (`compute_comms`) is read as [`Lists`].

use super::{Action, Batching, Kind, Lists, Schedule, ScheduleError};

/// A schedule from a file of computations; `file` is its name.
pub fn read(file: &str, text: &str) -> Result<Schedule, ScheduleError> {
    let mut lists = Lists::default();
    each(file, text, &mut lists, |action| {
        if action.kind.computes() {
            return Ok(());
        }
        Err(format!(
            "{action} is communication, and this is read as a schedule of computations: leave out all but F, B, I and W"
        ))
    })?;
    if lists.all().is_empty() {
        let problem = "no action: write a line for each rank, such as 0F0,0F1,0B0,0B1".to_owned();
        return Err(ScheduleError::Cell { file: file.to_owned(), line: 1, column: 1, problem });
    }
    Schedule::new(file.to_owned(), lists, Batching::Eager)
}

/// Lists that may hold communication.
pub fn lists(file: &str, text: &str) -> Result<Lists, ScheduleError> {
    let mut lists = Lists::default();
    each(file, text, &mut lists, |_| Ok(()))?;
    Ok(lists)
}

fn each(
    file: &str,
    text: &str,
    lists: &mut Lists,
    accept: impl Fn(&Action) -> Result<(), String>,
) -> Result<(), ScheduleError> {
    for (line, row) in text.lines().enumerate() {
        let mut column = 1;
        for cell in row.split(',') {
            let blank = cell.chars().take_while(|c| c.is_whitespace()).count();
            let from = lists.open().len();
            let read =
                portion(cell.trim(), lists.open()).and_then(|()| lists.open()[from..].iter().try_for_each(&accept));
            read.map_err(|problem| ScheduleError::Cell {
                file: file.to_owned(),
                line: line + 1,
                column: column + blank,
                problem,
            })?;
            column += cell.chars().count() + 1;
        }
        lists.close();
    }
    Ok(())
}

/// One cell: nothing, an action, or several side by side.
fn portion(cell: &str, out: &mut Vec<Action>) -> Result<(), String> {
    if cell.is_empty() {
        return Ok(());
    }
    let Some(inner) = cell.strip_prefix('(') else {
        out.push(action(cell)?);
        return Ok(());
    };
    let Some((parts, "OVERLAP_F_B")) = inner.split_once(')') else {
        return Err(format!("{cell:?} is no overlap: expected something like (0F4;7B1)OVERLAP_F_B"));
    };
    let from = out.len();
    for part in parts.split(';') {
        out.push(action(part.trim())?.join());
    }
    if let Some(wrong) = out[from..].iter().find(|action| !action.kind.computes()) {
        return Err(format!("{wrong} cannot overlap: only F, B, I and W can"));
    }
    if let Some(last) = out.last_mut() {
        last.joined = false;
    }
    Ok(())
}

/// `[stage][kind][micro-batch]`, the last for what concerns one micro-batch.
fn action(text: &str) -> Result<Action, String> {
    let wrong = |why: &str| {
        let words = Kind::ALL.map(Kind::word).join(", ");
        format!(
            "{text:?} is no action ({why}): expected stage, kind and micro-batch such as 2F0, the kind one of {words}"
        )
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (stage, rest) = text.split_at(digits(text));
    let stage: u16 = stage.parse().map_err(|_| wrong("it does not start with a stage from 0 to 65535"))?;
    let word = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(|| wrong("its kind is unknown"))?;
    let microbatch = &rest[word.len()..];
    match (kind.of_stage(), microbatch.is_empty()) {
        (true, true) => Ok(Action::of_stage(stage, kind)),
        (true, false) => Err(wrong("it concerns a whole stage, so no micro-batch follows")),
        (false, true) => Err(wrong("its micro-batch is missing")),
        (false, false) => match microbatch.parse() {
            Ok(microbatch) if microbatch < 1 << 24 => Ok(Action::new(stage, kind, microbatch)),
            _ => Err(wrong("its micro-batch is not below 16,777,216")),
        },
    }
}
