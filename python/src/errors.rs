//! A scenario or a request without an answer, as Python's exception `windtunnel.ScenarioError` or as the refusal in a row of a sweep.

use pyo3::prelude::*;

use windtunnel::cost::ProfileError;
use windtunnel::explore::plan::PlanError;
use windtunnel::hardware::HardwareError;
use windtunnel::model::huggingface::ModelError;
use windtunnel::scenario::{ScenarioError, reason};

mod python {
    pyo3::import_exception!(windtunnel._errors, ScenarioError);
}

/// The exception, with the text that the command prints.
pub fn raised(error: &ScenarioError) -> PyErr {
    python::ScenarioError::new_err((error.to_string(), code(error)))
}

/// The exception of a request that has no answer.
pub fn unplanned(error: &PlanError) -> PyErr {
    match error {
        PlanError::Scenario(error) => raised(error),
        other => python::ScenarioError::new_err((other.to_string(), None::<&str>)),
    }
}

/// The first code of a refusal.
fn code(error: &ScenarioError) -> Option<&'static str> {
    error.problems().iter().find_map(|problem| match problem {
        ScenarioError::Plan { code, .. } => *code,
        _ => None,
    })
}

/// Why one point of a grid has no prediction. It has no place: nobody has the lines of a scenario that a program made.
#[derive(Debug, IntoPyObject)]
pub struct Refusal {
    code: Option<&'static str>,
    reason: String,
    remedy: Option<String>,
}

impl Refusal {
    /// The first problem's.
    pub fn of(error: &ScenarioError) -> Refusal {
        let first = error.problems().first().unwrap_or(error);
        let (reason, remedy) = match first {
            ScenarioError::Plan { problem, remedy, .. } => (problem.clone(), Some(remedy.clone())),
            other => (reason(other), None),
        };
        Refusal { code: code(first), reason, remedy }
    }
}

/// Whether a file could not be read. That says nothing about a plan, and may be otherwise on another machine.
pub fn is_of_a_file(error: &ScenarioError) -> bool {
    error.problems().iter().any(|problem| match problem {
        ScenarioError::Unreadable { .. } => true,
        ScenarioError::Model { problem, .. } => matches!(**problem, ModelError::Unreadable { .. }),
        ScenarioError::Topology { problem, .. } => matches!(**problem, HardwareError::Unreadable { .. }),
        ScenarioError::Profile { problem, .. } => matches!(**problem, ProfileError::Read { .. }),
        ScenarioError::Written { .. }
        | ScenarioError::Plan { .. }
        | ScenarioError::Several(_)
        | ScenarioError::Engine(_) => false,
    })
}
