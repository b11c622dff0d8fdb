//! What a plugin can do wrong, and what to do then.

use std::fmt;
use std::path::PathBuf;

/// A plugin that cannot be used, or a call that it refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PjrtError {
    /// No such file.
    #[error("{}: no such plugin: fetch it with `windtunnel calibrate plugins fetch`, or name another file", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The loader does not take it.
    #[error("{}: cannot be loaded: {why}\nit may be for another system, or cut off: fetch it again", path.display())]
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        why: String,
    },
    /// A library, but no plugin.
    #[error("{}: is no PJRT plugin: it has no GetPjrtApi", path.display())]
    NoPlugin {
        /// The file.
        path: PathBuf,
    },
    /// Of another API version.
    #[error(
        "{}: is of PJRT API {}.{}; {}.{} or a later {}.x is needed: fetch a version of `windtunnel calibrate plugins list`",
        path.display(), found.0, found.1, needed.0, needed.1, needed.0
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: (i32, i32),
        /// The oldest that will do.
        needed: (i32, i32),
    },
    /// A function that the plugin does not have.
    #[error("the plugin has no {call}: a newer one is needed")]
    Lacks {
        /// The function.
        call: &'static str,
    },
    /// A call that the plugin refused.
    #[error("{call}: {code}: {message}")]
    Refused {
        /// The function.
        call: String,
        /// The kind of error.
        code: Code,
        /// The plugin's words.
        message: String,
    },
    /// Not what the C interface promises.
    #[error("{0}")]
    Nonsense(String),
}

/// A kind of error, numbered as `absl::StatusCode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    /// A limit was reached: for a compiler, the chip's memory.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 17] = [
            "ok",
            "cancelled",
            "unknown",
            "invalid argument",
            "deadline exceeded",
            "not found",
            "already exists",
            "permission denied",
            "resource exhausted",
            "failed precondition",
            "aborted",
            "out of range",
            "unimplemented",
            "internal",
            "unavailable",
            "data loss",
            "unauthenticated",
        ];
        match usize::try_from(self.0).ok().and_then(|at| NAMES.get(at)) {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}
