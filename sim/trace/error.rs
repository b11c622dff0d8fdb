//! Why a trace could not be read: which file, where in it, and what to try.

/// Why a trace could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The system could not read it.
    #[error("cannot read the trace {file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// Its content is no format that is known.
    #[error("{file} is no trace that can be read: {found}. Known formats are {known}")]
    Unknown {
        /// The file.
        file: String,
        /// What it looks like.
        found: String,
        /// What would have been read.
        known: String,
    },
    /// Its content breaks its format.
    #[error("{file}, {place}: {what}. {remedy}")]
    Broken {
        /// The file.
        file: String,
        /// Where: bytes of the unpacked content, a row, a field.
        place: String,
        /// What was expected, and what stands there.
        what: String,
        /// What to try.
        remedy: String,
    },
    /// Its content is a trace in which nothing ran.
    #[error("{file} holds no {what}. {remedy}")]
    Empty {
        /// The file.
        file: String,
        /// What was looked for.
        what: &'static str,
        /// What to try.
        remedy: &'static str,
    },
    /// The caller asked to stop.
    #[error("reading {file} was interrupted")]
    Interrupted {
        /// The file.
        file: String,
    },
}

/// What stopped a reader, before the file's name is added.
#[derive(Debug)]
pub(super) enum Stop {
    /// The system could not read on.
    Io(std::io::Error),
    /// The content is broken.
    Broken { place: String, what: String, remedy: &'static str },
    /// The content holds nothing that ran.
    Empty { what: &'static str, remedy: &'static str },
}

/// What to try where the content ends too early.
pub(super) const CUT: &str =
    "The file was cut, or its writer was killed: copy it again, or profile again with fewer steps";

/// What a source of bytes says when its reader's caller wants no more.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(super) struct Interrupted;

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Io(error)
    }
}

impl Stop {
    /// The error of a file.
    pub(super) fn of(self, file: &str) -> Error {
        let file = file.to_owned();
        match self {
            Stop::Io(error) if error.get_ref().is_some_and(|why| why.is::<Interrupted>()) => {
                Error::Interrupted { file }
            }
            Stop::Io(error) => Error::Unreadable { file, reason: error.to_string() },
            Stop::Broken { place, what, remedy } => Error::Broken { file, place, what, remedy: remedy.to_owned() },
            Stop::Empty { what, remedy } => Error::Empty { file, what, remedy },
        }
    }
}
