//! Reads what nccl-tests prints, of every version since the first, into points.
//!
//! A log is noise with tables in it: MPI tags and `srun` labels before a line, shell traces, NCCL's own messages between
//! and inside rows, text around a pasted block. [`mod@line`] says what a line is, [`columns`] what a table's heading names,
//! [`row`] puts a row together, [`run`] finds where runs begin, [`kind`] says which collective a table without a name is
//! and between how many ranks, [`points`] writes what came out. Every row is checked against its own arithmetic: the bus
//! bandwidth of n ranks over the time must give back the size (`doc/PERFORMANCE.md` of nccl-tests has the factors). What
//! `-J` writes into a file instead is read by [`json`], and checked the same way.
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
mod json;
mod kind;
mod line;
mod points;
mod row;
mod run;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::Imported;
use crate::points::FileError;
pub use kind::Kind;

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
pub fn import(logs: &[PathBuf], known: &Known) -> Result<Imported, Vec<FileError>> {
    let mut imported = Imported::default();
    let mut errors = Vec::new();
    for path in logs {
        let shown = path.display().to_string();
        match windtunnel::files::bytes(path) {
            Ok(bytes) => errors.extend(one(&shown, &bytes, known, &mut imported).err()),
            Err(why) => errors.push(FileError::File { path: shown, why }),
        }
    }
    if errors.is_empty() { Ok(imported) } else { Err(errors) }
}

/// The points of one log.
pub fn understand(path: &str, bytes: &[u8], known: &Known) -> Result<Imported, FileError> {
    let mut imported = Imported::default();
    one(path, bytes, known, &mut imported).map(|()| imported)
}

/// Adds the points of one log. What is not UTF-8 (a host's name, a terminal's codes) is replaced.
fn one(path: &str, bytes: &[u8], known: &Known, imported: &mut Imported) -> Result<(), FileError> {
    let text = &String::from_utf8_lossy(bytes);
    let file = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let hint = Kind::mentioned(&file);
    let result = if json::is(text) { of_json(path, text, imported) } else { run::runs(text, hint) };
    let result = result.and_then(|runs| points::write(path, bytes.len() as u64, &runs, known, imported));
    result.map_err(|(line, why)| FileError::Line { path: path.to_owned(), line, why })
}

/// The one run of a file that `-J` wrote.
fn of_json(path: &str, text: &str, imported: &mut Imported) -> Result<Vec<run::Run>, Mistake> {
    let (run, said) = json::run(text)?;
    imported.remarks.extend(said.into_iter().map(|said| format!("{path}:1: NCCL said: {said}")));
    Ok(vec![run])
}

/// A mistake at a line, before the file's name is known.
type Mistake = (usize, String);
