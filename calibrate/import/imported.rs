//! Points that others measured, and where they go: printed, or into a file of their own.

use std::io::Write as _;
use std::path::Path;

use super::ImportError;
use crate::points;

/// Lines of a file of points, and remarks on what was left out.
#[derive(Debug, Default)]
pub struct Imported {
    /// JSON lines.
    pub text: String,
    /// Points in them.
    pub points: usize,
    /// What was left out and why, one line each.
    pub remarks: Vec<String>,
}

impl Imported {
    /// Prints the points.
    pub fn print(&self) -> Result<(), ImportError> {
        let written = std::io::stdout().write_all(self.text.as_bytes());
        written.map_err(|why| ImportError::File { path: "standard output".to_owned(), why })
    }

    /// Writes a new file of points, whole or not at all; one that is there already is kept.
    pub fn create(&self, out: &Path) -> Result<(), ImportError> {
        let bad = |why| ImportError::File { path: out.display().to_string(), why };
        let half = out.with_extension("part");
        if out.exists() {
            let why = "is there already: name another file, or remove it";
            return Err(bad(std::io::Error::new(std::io::ErrorKind::AlreadyExists, why)));
        }
        std::fs::write(&half, &self.text).map_err(bad)?;
        let read = points::read(&half)?;
        assert_eq!(read.points.len(), self.points, "what was written reads back whole");
        std::fs::rename(&half, out).map_err(bad)
    }
}
