//! Why rates of interruptions could not be loaded.

use crate::hardware::Place;

/// Rates that could not be found or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailuresError {
    /// Neither a shipped name nor a path.
    #[error("no rates of interruptions are named {name:?}{}: name one of {known}, or give the path of a .toml", did_you_mean(.closest))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The shipped name nearest to it, if any is near.
        closest: Option<&'static str>,
        /// All shipped names.
        known: String,
    },
    /// The file could not be read.
    #[error("cannot read the file of rates {path}: {reason}")]
    Unreadable {
        /// The path asked for.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The file says something that cannot be understood, at a known place.
    #[error("{problem}\n{place}")]
    Written {
        /// What is wrong.
        problem: String,
        /// Where.
        place: Place,
    },
}

fn did_you_mean(closest: &Option<&'static str>) -> String {
    closest.map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}
