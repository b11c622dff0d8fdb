//! A file of rows that a sweep before has begun: whether it is of the same grid, and how much of it is whole.

use super::grid::Grid;
use super::row::Row;

/// The rows of a file.
#[derive(Debug, Default)]
pub struct Held {
    /// Its whole lines, without their ends.
    pub lines: Vec<String>,
    /// How many bytes they are \[B\]. What follows is half a row.
    pub bytes: u64,
}

/// Why a file holds no rows of a grid.
#[derive(Debug, thiserror::Error)]
pub enum Other {
    /// It is no file of rows.
    #[error("line {line} is no row of a sweep: {why}")]
    NoRow {
        /// From 1.
        line: usize,
        /// What the parser said.
        why: String,
    },
    /// Somebody changed a row.
    #[error("line {line} was changed after it was written: its digest is not that of what it says")]
    Changed {
        /// From 1.
        line: usize,
    },
    /// Another release wrote it.
    #[error("its rows are of windtunnel {theirs}, and this is {ours}")]
    Version {
        /// As the rows say.
        theirs: String,
        /// Of this program.
        ours: &'static str,
    },
    /// Other keys or other values were varied.
    #[error("its row {index} is the run with {theirs}, and that of this sweep has {ours}")]
    Run {
        /// Which row.
        index: usize,
        /// What it varied.
        theirs: String,
        /// What this sweep varies.
        ours: String,
    },
    /// The scenario is another, or later rows have other values.
    #[error(
        "its rows are of another scenario or of other values: the file, one that it names, or a --vary is not what it was"
    )]
    Scenario,
    /// It has more rows than the grid has runs.
    #[error("it has {rows} rows, and this sweep has {runs} runs")]
    Longer {
        /// Rows of the file.
        rows: usize,
        /// Runs of the grid.
        runs: u64,
    },
}

/// The rows of a file that a sweep of this grid has begun. Half a row at its end is none.
pub fn held(grid: &Grid, bytes: &[u8]) -> Result<Held, Other> {
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = vec![];
    for (at, line) in bytes[..whole].split_inclusive(|&byte| byte == b'\n').enumerate() {
        lines.push(row(grid, at, line.strip_suffix(b"\n").unwrap_or(line))?);
    }
    torn(grid, lines.len(), &bytes[whole..])?;
    Ok(Held { lines, bytes: whole as u64 })
}

/// A whole line, if it is that row of the grid.
fn row(grid: &Grid, at: usize, line: &[u8]) -> Result<String, Other> {
    let none = |why: String| Other::NoRow { line: at + 1, why };
    let line = std::str::from_utf8(line).map_err(|_| none("it is no text in UTF-8".to_owned()))?;
    let row = Row::read(line).map_err(|why| none(why.to_string()))?;
    let ours = env!("CARGO_PKG_VERSION");
    if row.windtunnel != ours {
        return Err(Other::Version { theirs: row.windtunnel, ours });
    }
    if !Row::is_unchanged(line) {
        return Err(Other::Changed { line: at + 1 });
    }
    if at as u64 >= grid.runs() {
        return Err(Other::Longer { rows: at + 1, runs: grid.runs() });
    }
    let varied = grid.varied(at as u64);
    if row.index != at as u64 || row.varied.get() != varied.get() {
        return Err(Other::Run { index: at, theirs: row.varied.get().to_owned(), ours: varied.get().to_owned() });
    }
    match row.grid == grid.id() {
        true => Ok(line.to_owned()),
        false => Err(Other::Scenario),
    }
}

/// Half a row begins as the whole one does. What does not is somebody's text without an end, which is not cut off.
fn torn(grid: &Grid, at: usize, half: &[u8]) -> Result<(), Other> {
    if half.is_empty() {
        return Ok(());
    }
    if at as u64 >= grid.runs() {
        return Err(Other::Longer { rows: at + 1, runs: grid.runs() });
    }
    let head = format!("{{\"index\":{at},\"varied\":{},", grid.varied(at as u64).get());
    let common = head.len().min(half.len());
    match half[..common] == head.as_bytes()[..common] {
        true => Ok(()),
        false => Err(Other::NoRow { line: at + 1, why: "it does not begin as the row that is missing".to_owned() }),
    }
}
