//! Points that others measured, and where they go: printed, or into a file of their own.

use std::path::Path;

use windtunnel::files::Output;

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
        windtunnel::files::print_json(&self.text)
            .map_err(|why| ImportError::File { path: "standard output".to_owned(), why })
    }

    /// Writes a new file of points, whole or not at all; one that is there already is kept.
    pub fn create(&self, out: &Path) -> Result<(), ImportError> {
        let bad = |why| ImportError::File { path: out.display().to_string(), why };
        if out.exists() {
            let why = "is there already: name another file, or remove it";
            return Err(bad(std::io::Error::new(std::io::ErrorKind::AlreadyExists, why)));
        }
        let read = points::parse(&out.display().to_string(), self.text.as_bytes())?;
        assert_eq!(read.points.len(), self.points, "what is written reads back whole");
        Ok(Output::open(out).and_then(|output| output.write(&self.text))?)
    }
}
