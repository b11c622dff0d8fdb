//! `framework.experts` as understood, and what of mixtures of experts and latent attention no runtime simulates yet.
//!
//! A model that is not simulated can still be described (`windtunnel show model`); everything that would need its program
//! refuses it with [`Scenario::simulable`].

use super::error::ScenarioError;
use super::understood::{Reader, Scenario};
use super::written;
use crate::model::ModelConfig;
use crate::model::experts::Implementation;
use crate::runtime::Parts;

/// How experts are run.
pub(super) fn implementation(
    reader: &mut Reader<'_>,
    written: &written::Framework,
    model: &ModelConfig,
) -> Result<Implementation, ScenarioError> {
    match &written.experts {
        Some(at) if model.experts.is_none() => {
            let problem = format!("framework.experts says how experts are run, and {} has none", model.name);
            Err(reader.plan(at, problem, "remove framework.experts"))
        }
        Some(at) => Ok(*at.get_ref()),
        None if model.experts.is_none() => Ok(Implementation::default()),
        None => Ok(reader.assume("framework.experts", Implementation::Loop, "\"loop\"")),
    }
}

impl Scenario {
    /// Refuses what no runtime here has rules for, before a program is compiled from it.
    pub fn simulable(&self) -> Result<(), ScenarioError> {
        let Some(what) = self.job.refuses() else { return Ok(()) };
        let remedy = match self.job.parts() {
            Parts::Whole(_) => {
                "`windtunnel show model` describes it; to fly it, take mixtral-8x7b or qwen3-30b-a3b as they are, or a \
                 dense model"
            }
            Parts::Split(_) | Parts::Compiled(_) => {
                "`windtunnel show model` describes it; to fly it, take a dense model, or runtime = \"fsdp2\""
            }
        };
        Err(ScenarioError::Plan {
            problem: format!("{} needs {what}, which is described but not simulated yet", self.job.model().name),
            place: Box::new(self.model_at.clone()),
            remedy: remedy.to_owned(),
        })
    }
}
