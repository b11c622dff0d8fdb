//! Schedules in PyTorch's CSV (`_load_csv`, `_dump_csv`): a line for each rank, a cell for each action.
//!
//! Empty cells are idle slots and mean nothing. A file of computations alone becomes a [`Schedule`]; one that holds
//! communication too (`compute_comms`) is read as [`Lists`].

use std::path::Path;

use super::{Action, Batching, Kind, Lists, Lowering, Schedule, ScheduleError, lower};

/// A schedule from a file of computations.
pub fn load(path: &Path) -> Result<Schedule, ScheduleError> {
    let file = path.display().to_string();
    match crate::files::text(path) {
        Ok(text) => read(&file, &text),
        Err(error) => Err(ScheduleError::Unreadable { file, reason: error.to_string() }),
    }
}

/// The same from its text; `file` is its name. What is read can be issued as PyTorch does it.
pub fn read(file: &str, text: &str) -> Result<Schedule, ScheduleError> {
    let mut lists = Lists::default();
    let columns = each(file, text, &mut lists, |action| {
        if action.kind.computes() {
            return Ok(());
        }
        Err(format!(
            "{action} is communication, and this is read as a schedule of computations: leave out all but F, B, I and W"
        ))
    })?;
    let cells = Cells { file, columns: &columns };
    if lists.all().is_empty() {
        return Err(cells.wrong((0, 0), "no action: write a line for each rank, such as 0F0,0F1,0B0,0B1".to_owned()));
    }
    cells.holds_as_many(&lists)?;
    let written = lists.clone();
    let schedule = Schedule::new(file.to_owned(), lists, Batching::Eager).and_then(|schedule| {
        lower(&schedule, &Lowering::default())?;
        Ok(schedule)
    });
    schedule.map_err(|error| cells.place(&written, error))
}

/// Lists that may hold communication.
pub fn lists(file: &str, text: &str) -> Result<Lists, ScheduleError> {
    let mut lists = Lists::default();
    each(file, text, &mut lists, |_| Ok(()))?;
    Ok(lists)
}

/// Reads all cells; the columns in which actions stand, in the order of the lists.
fn each(
    file: &str,
    text: &str,
    lists: &mut Lists,
    accept: impl Fn(&Action) -> Result<(), String>,
) -> Result<Vec<usize>, ScheduleError> {
    let mut columns = vec![];
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
            columns.resize(lists.open().len(), column + blank);
            column += cell.chars().count() + 1;
        }
        lists.close();
    }
    Ok(columns)
}

/// Where a file's actions stand.
struct Cells<'f> {
    file: &'f str,
    columns: &'f [usize],
}

impl Cells<'_> {
    /// What is wrong with an action: a rank's, and which of all.
    fn wrong(&self, (rank, at): (usize, usize), problem: String) -> ScheduleError {
        let column = self.columns.get(at).copied().unwrap_or(1);
        ScheduleError::Cell { file: self.file.to_owned(), line: rank + 1, column, problem }
    }

    /// The same of one that is found among all.
    fn wrong_one(&self, lists: &Lists, at: usize, problem: String) -> ScheduleError {
        let rank = (0..lists.ranks()).find(|&rank| lists.range(rank).contains(&at)).unwrap_or(0);
        self.wrong((rank, at), problem)
    }

    /// A forward and a backward at least for each micro-batch at each stage, before there is a table of them.
    fn holds_as_many(&self, lists: &Lists) -> Result<(), ScheduleError> {
        let last = |of: fn(&Action) -> u64| (0..lists.all().len()).max_by_key(|&at| of(&lists.all()[at])).unwrap_or(0);
        let (stage, microbatch) = (last(|action| action.stage.into()), last(|action| action.microbatch.into()));
        let stages = u64::from(lists.all()[stage].stage) + 1;
        let microbatches = u64::from(lists.all()[microbatch].microbatch) + 1;
        let cells = stages * microbatches;
        if cells <= lists.all().len() as u64 {
            return Ok(());
        }
        let problem = format!(
            "{stages} stages and {microbatches} micro-batches are {cells} forwards and as many backwards, and the file has \
             {} actions",
            lists.all().len()
        );
        Err(self.wrong_one(lists, if microbatches > stages { microbatch } else { stage }, problem))
    }

    /// An error of the lists, where the file has it.
    fn place(&self, lists: &Lists, error: ScheduleError) -> ScheduleError {
        let at = |rank: usize, entry: usize| (rank, lists.range(rank).start + entry - 1);
        match error {
            ScheduleError::Order { rank, entry, action, problem } => {
                self.wrong(at(rank, entry), format!("{action}: {problem}"))
            }
            ScheduleError::Deadlock { rank, entry, .. } => self.wrong(at(rank, entry), error.to_string()),
            // Its own last action, or one of a later stage, which says that there is one.
            ScheduleError::Incomplete { stage, .. } => {
                let of = |action: &Action| usize::from(action.stage) == stage;
                let later = |action: &Action| usize::from(action.stage) > stage;
                let found = lists.all().iter().rposition(of).or_else(|| lists.all().iter().position(later));
                self.wrong_one(lists, found.unwrap_or(0), error.to_string())
            }
            error => ScheduleError::Lowering { problem: format!("{}: {error}", self.file) },
        }
    }
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
        let words = Kind::ALL.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ");
        format!(
            "{text:?} is no action ({why}): expected stage, kind and micro-batch such as 2F0, the kind one of {words}"
        )
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (stage, rest) = text.split_at(digits(text));
    let stage: u16 = stage.parse().map_err(|_| wrong("it does not start with a stage from 0 to 65535"))?;
    let word = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let kind =
        Kind::ALL.iter().copied().find(|kind| kind.word() == word).ok_or_else(|| wrong("its kind is unknown"))?;
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
