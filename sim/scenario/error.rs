//! Why a scenario could not be understood, with its place in the file and the remedy.

use crate::cost::ProfileError;
use crate::engine::EngineError;
use crate::hardware::{HardwareError, Place};
use crate::model::huggingface::ModelError;

/// The code of a name that nothing has.
pub(super) const UNKNOWN: &str = "unknown-name";

/// Problems of a file that are looked for.
pub(super) const MOST: usize = 20;

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
    /// Several of these, in the order of the file.
    #[error("{}", several(.0))]
    Several(Vec<ScenarioError>),
    /// The simulation stopped.
    #[error(transparent)]
    Engine(Box<EngineError>),
}

/// Problems one below the other, and how many they are.
fn several(problems: &[ScenarioError]) -> String {
    let all: Vec<String> = problems.iter().map(ScenarioError::to_string).collect();
    let more = if problems.len() < MOST { "" } else { ", and there may be more" };
    format!("{}\n\n{} problems{more}", all.join("\n\n"), problems.len())
}

impl ScenarioError {
    /// Every problem by itself, in the order of the file.
    pub fn problems(&self) -> &[ScenarioError] {
        match self {
            ScenarioError::Several(problems) => problems,
            ScenarioError::Unreadable { .. }
            | ScenarioError::Written { .. }
            | ScenarioError::Plan { .. }
            | ScenarioError::Model { .. }
            | ScenarioError::Topology { .. }
            | ScenarioError::Profile { .. }
            | ScenarioError::Engine(_) => std::slice::from_ref(self),
        }
    }

    /// Where it is; of several the first.
    pub fn place(&self) -> Option<&Place> {
        match self {
            ScenarioError::Written { place, .. }
            | ScenarioError::Plan { place, .. }
            | ScenarioError::Model { place, .. }
            | ScenarioError::Topology { place, .. }
            | ScenarioError::Profile { place, .. } => Some(place),
            ScenarioError::Several(problems) => problems.first()?.place(),
            ScenarioError::Unreadable { .. } | ScenarioError::Engine(_) => None,
        }
    }

    /// The short name of what is wrong, where it has one; of several the first.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            ScenarioError::Plan { code, .. } => *code,
            ScenarioError::Several(problems) => problems.first()?.code(),
            ScenarioError::Unreadable { .. }
            | ScenarioError::Written { .. }
            | ScenarioError::Model { .. }
            | ScenarioError::Topology { .. }
            | ScenarioError::Profile { .. }
            | ScenarioError::Engine(_) => None,
        }
    }

    /// Whether it is of one key, whatever the rest of the file says: a key that nobody knows, a value that the key never takes, a name
    /// that nothing has.
    pub(super) fn is_of_a_key(&self) -> bool {
        match self {
            ScenarioError::Written { .. }
            | ScenarioError::Model { .. }
            | ScenarioError::Topology { .. }
            | ScenarioError::Profile { .. } => true,
            ScenarioError::Plan { code, .. } => *code == Some(UNKNOWN),
            ScenarioError::Several(_) | ScenarioError::Unreadable { .. } | ScenarioError::Engine(_) => false,
        }
    }

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
