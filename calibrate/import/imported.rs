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
    /// Writes a new file of points, whole or not at all.
    pub fn write(&self, out: Output) -> Result<(), ImportError> {
        let read = points::parse(&out.path().display().to_string(), self.text.as_bytes())?;
        assert_eq!(read.points.len(), self.points, "what is written reads back whole");
        Ok(out.write(&self.text)?)
    }
}

/// Gets ready to write a new file of points; one that is there already is kept.
pub fn new_file(out: &Path) -> Result<Output, ImportError> {
    if out.is_file() {
        let why = "is there already: name another file, or remove it";
        let why = std::io::Error::new(std::io::ErrorKind::AlreadyExists, why);
        return Err(ImportError::File { path: out.display().to_string(), why });
    }
    Ok(Output::open(out)?)
}
