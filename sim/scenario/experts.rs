//! `framework.experts` as understood, and what of mixtures of experts and latent attention no runtime simulates yet.
//!
//! A model that is not simulated can still be described (`windtunnel show model`); everything that would need its program
//! refuses it with [`Scenario::simulable`].

use super::error::ScenarioError;
use super::understood::{Reader, Runtime, Scenario};
use super::written;
use crate::model::ModelConfig;
use crate::model::experts::{Experts, Implementation, Score};
use crate::runtime;
use crate::runtime::fsdp::Version;
use crate::runtime::train::{Checkpoint, Job};

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
        let what = match &self.job {
            runtime::Job::Train(job) => unmodelled(job, self.runtime),
            runtime::Job::Megatron(job) => runtime::megatron::refuses(job),
            runtime::Job::InternEvo(job) => runtime::internevo::refuses(job),
            runtime::Job::Nanotron(job) => runtime::nanotron::refuses(job),
        };
        let Some(what) = what else { return Ok(()) };
        let remedy = match self.job {
            runtime::Job::Train(_) => {
                "`windtunnel show model` describes it; to fly it, take mixtral-8x7b or qwen3-30b-a3b as they are, or a \
                 dense model"
            }
            _ => "`windtunnel show model` describes it; to fly it, take a dense model, or runtime = \"fsdp2\"",
        };
        Err(ScenarioError::Plan {
            problem: format!("{} needs {what}, which is described but not simulated yet", self.job.model().name),
            place: Box::new(self.model_at.clone()),
            remedy: remedy.to_owned(),
        })
    }
}

/// The first thing in a job that has no rules.
fn unmodelled(job: &Job, runtime: Runtime) -> Option<&'static str> {
    let model = &job.model;
    if model.latent.is_some() {
        return Some("latent attention");
    }
    if model.sinks {
        return Some("attention sinks");
    }
    let experts = model.experts.as_ref()?;
    let list = [
        (runtime == Runtime::Fsdp1 || matches!(job.fsdp.version, Version::One(_)), "experts under FSDP1"),
        (job.tensor.splits(), "experts under tensor parallelism"),
        (job.compile, "compiled blocks with experts"),
        (job.checkpoint == Checkpoint::SelectiveOp, "selective checkpointing of blocks with experts"),
        (job.eager.offload.is_some(), "checkpoints of blocks with experts in the host's memory"),
    ];
    list.into_iter().find(|&(applies, _)| applies).map(|(_, what)| what).or_else(|| mixture(job, experts))
}

/// The first thing in a mixture that has no rules.
fn mixture(job: &Job, experts: &Experts) -> Option<&'static str> {
    let router = experts.router;
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, job.batch * job.seq);
    let list = [
        (router.score != Score::Softmax, "a router that is not a softmax over all experts"),
        (!router.normalises, "a router whose weights do not sum to one"),
        (router.scales, "a router that scales its weights"),
        (router.bias || router.correction, "a router with a bias"),
        (router.groups.is_some(), "a router that chooses among groups"),
        (experts.bias, "experts with biases"),
        (experts.auxiliary_loss, "a loss that balances experts"),
        (job.model.ffn_bias, "dense blocks with biases beside experts"),
        (counts.contains(&0), "experts that no token reaches"),
    ];
    list.into_iter().find(|&(applies, _)| applies).map(|(_, what)| what)
}
