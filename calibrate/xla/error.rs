//! Why `calibrate xla` ended early, each kind with its exit code.

use std::process::ExitCode;

use crate::journal::Refused;
use crate::pjrt::compile::CompileError;
use crate::pjrt::error::PjrtError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An argument, a file, or a program that the compiler refuses.
    #[error("{0}")]
    Input(String),
    /// A plugin that is missing or cannot be used, or no device.
    #[error("{0}")]
    Missing(String),
    /// Somebody else writes the file of points.
    #[error("{0}")]
    Busy(String),
    /// The plugin died, hung, or a device computed something else.
    #[error("{0}")]
    Device(String),
    /// It compiles, and does not fit.
    #[error("{0}")]
    OutOfMemory(String),
    /// Somebody asked to stop.
    #[error("interrupted; what was measured is in the file, and the same command goes on from there")]
    Interrupted,
    /// The same of a compilation.
    #[error("{0}")]
    Ended(String),
}

impl Failure {
    /// The exit code, as `--help` lists them.
    pub fn code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Missing(_) => 3,
            Self::Busy(_) => 5,
            Self::Device(_) => 6,
            Self::OutOfMemory(_) => 8,
            Self::Interrupted | Self::Ended(_) => 130,
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Input(why) => Self::Input(why),
            Refused::Busy(why) => Self::Busy(why),
        }
    }
}

impl From<CompileError> for Failure {
    fn from(error: CompileError) -> Self {
        let text = error.to_string();
        match error {
            CompileError::Input(_) | CompileError::Refused { .. } | CompileError::Lacks(_) => Self::Input(text),
            CompileError::Unusable(_) => Self::Missing(text),
            CompileError::Lost(_) => Self::Device(text),
            CompileError::OutOfMemory { .. } => Self::OutOfMemory(text),
            CompileError::Interrupted => Self::Ended(text),
        }
    }
}

impl From<PjrtError> for Failure {
    fn from(error: PjrtError) -> Self {
        match error {
            PjrtError::Refused { .. } | PjrtError::Nonsense(_) => Self::Device(error.to_string()),
            _ => Self::Missing(error.to_string()),
        }
    }
}

/// Prints what went well, or says what did not.
pub fn finish(done: Result<String, Failure>) -> ExitCode {
    match done {
        Ok(report) => crate::cli::said(&report, 0),
        Err(failure) => crate::cli::failed(&failure, failure.code()),
    }
}
