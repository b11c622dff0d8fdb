//! Reads what nccl-tests prints, of every version since the first, into points.
//!
//! A log is noise with tables in it: MPI tags and `srun` labels before a line, shell traces, NCCL's own messages between
//! and inside rows, text around a pasted block. [`mod@line`] says what a line is, [`columns`] what a table's heading names,
//! [`row`] puts a row together, [`run`] finds where runs begin, [`kind`] says which collective a table without a name is
//! and between how many ranks, [`points`] writes what came out. Every row is checked against its own arithmetic: the bus
//! bandwidth of n ranks over the time must give back the size (`doc/PERFORMANCE.md` of nccl-tests has the factors).
//!
//! What changed over the years, from the tool's history:
//!
//! ```text
//! 2017  bytes N type [op|root]           time algbw busbw res       ×1 (broadcast, reduce) or ×2, time in ms, `%5.2f`
//! 2019  size count type [redop] [root]   time algbw busbw error     ×2, time in µs; all-gather's algbw is its busbw
//! 2022  size count type redop root       time algbw busbw #wrong    ×2, `none` or nothing as redop
//! 2024  … with copybw before #wrong where a copy runs beside
//! 2025  … a timestamp at the end; the program's name and NCCL's version above
//! 2026  … i_min i_max i_p99 i_cv% after each #wrong
//! ```

mod columns;
mod kind;
mod line;
mod points;
mod row;
mod run;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::Imported;
pub use kind::Kind;

/// Why a log gives no points.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be read.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("{path}:{line}: {why}")]
    Line {
        /// The file.
        path: String,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it, and what to try.
        why: String,
    },
}

/// What the reader of a log knows and the log does not say.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The collective.
    pub collective: Option<Kind>,
    /// Ranks.
    pub ranks: Option<u64>,
    /// Nodes.
    pub nodes: Option<u64>,
    /// Where the log was published; none: its path.
    pub source: Option<String>,
}

/// Reads logs; all that is wrong with any of them, if anything is.
pub fn import(logs: &[PathBuf], known: &Known) -> Result<Imported, Vec<LogError>> {
    let mut imported = Imported::default();
    let mut errors = Vec::new();
    for path in logs {
        if let Err(why) = read(path).and_then(|text| one(&path.display().to_string(), &text, known, &mut imported)) {
            errors.push(why);
        }
    }
    if errors.is_empty() { Ok(imported) } else { Err(errors) }
}

/// The text of a log; what is not UTF-8 (a host's name, a terminal's codes) is replaced.
fn read(path: &Path) -> Result<String, LogError> {
    let bytes = std::fs::read(path).map_err(|why| LogError::File { path: path.display().to_string(), why })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Understands one log.
fn one(path: &str, text: &str, known: &Known, imported: &mut Imported) -> Result<(), LogError> {
    let file = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let hint = Kind::mentioned(&file);
    let result = run::runs(text, hint).and_then(|runs| points::write(path, &runs, known, imported));
    result.map_err(|(line, why)| LogError::Line { path: path.to_owned(), line, why })
}

/// A mistake at a line, before the file's name is known.
type Mistake = (usize, String);
