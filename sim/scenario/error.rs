//! Why a scenario could not be understood, with its place in the file and the remedy.

use crate::cost::ProfileError;
use crate::engine::EngineError;
use crate::hardware::{HardwareError, Place};
use crate::model::huggingface::ModelError;

/// A scenario that cannot be flown.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("cannot read the scenario {path}: {reason}")]
    Unreadable {
        /// Path as given.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The file is not a scenario: syntax, an unknown key, a wrong type, a missing table.
    #[error("{problem}\n{place}")]
    Written {
        /// What is wrong.
        problem: String,
        /// Where.
        place: Box<Place>,
    },
    /// The plan is impossible.
    #[error("{problem}\n{place}\n{remedy}")]
    Plan {
        /// A short name of what is wrong that stays when the words change, where it has one.
        code: Option<&'static str>,
        /// What is wrong, with the numbers that disagree.
        problem: String,
        /// Where.
        place: Box<Place>,
        /// What to try.
        remedy: String,
    },
    /// The model could not be loaded.
    #[error("{problem}\n{place}")]
    Model {
        /// What is wrong.
        problem: Box<ModelError>,
        /// Where it was named.
        place: Box<Place>,
    },
    /// The topology could not be loaded.
    #[error("{problem}\n{place}")]
    Topology {
        /// What is wrong.
        problem: Box<HardwareError>,
        /// Where it was named.
        place: Box<Place>,
    },
    /// The topology's profile could not be loaded.
    #[error("{problem}\n{place}")]
    Profile {
        /// What is wrong.
        problem: Box<ProfileError>,
        /// Where it was named.
        place: Box<Place>,
    },
    /// The simulation stopped.
    #[error(transparent)]
    Engine(Box<EngineError>),
}

impl ScenarioError {
    /// The same, with the name of what is wrong where a plan is.
    pub(super) fn coded(self, name: &'static str) -> ScenarioError {
        match self {
            ScenarioError::Plan { problem, place, remedy, .. } => {
                ScenarioError::Plan { code: Some(name), problem, place, remedy }
            }
            other => other,
        }
    }
}
