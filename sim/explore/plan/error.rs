//! Why a request has no answer.

use crate::hardware::Place;
use crate::scenario::ScenarioError;

/// A request that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file is no request: syntax, an unknown key, a wrong type.
    #[error("{problem}\n{place}")]
    Written {
        /// What is wrong.
        problem: String,
        /// Where.
        place: Box<Place>,
    },
    /// What it asks for contradicts itself, or does not exist.
    #[error("{problem}\n{remedy}")]
    Request {
        /// What is wrong, with the numbers that disagree.
        problem: String,
        /// What to try.
        remedy: String,
    },
    /// A model or a machine that there is not.
    #[error("{0}")]
    Unknown(String),
    /// No plan does what is asked.
    #[error("{problem}{}", listed(.nearest))]
    Nothing {
        /// Why, with what refused how many.
        problem: String,
        /// Requests near this one that have an answer.
        nearest: Vec<String>,
    },
    /// A prediction failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

fn listed(nearest: &[String]) -> String {
    match nearest {
        [] => "\nno request near this one was found that has an answer".to_owned(),
        all => format!("\nwhat has an answer:\n  {}", all.join("\n  ")),
    }
}

impl PlanError {
    pub(super) fn request(problem: impl Into<String>, remedy: impl Into<String>) -> PlanError {
        PlanError::Request { problem: problem.into(), remedy: remedy.into() }
    }
}
