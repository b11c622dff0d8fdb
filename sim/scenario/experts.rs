//! `framework.experts` and `mesh.ep` as understood, and what of mixtures of experts and latent attention no runtime simulates yet.
//!
//! A model that is not simulated can still be described (`windtunnel show model`); everything that would need its program
//! refuses it with [`Scenario::simulable`].

use super::error::ScenarioError;
use super::registry::Runtime;
use super::train::FSDP2;
use super::understood::{MOST_RANKS, Reader, Scenario};
use super::written::{self, ExpertStyle};
use crate::model::ModelConfig;
use crate::model::experts::{Experts, Implementation};
use crate::model::routing::Load;
use crate::runtime::Parts;
use crate::runtime::megatron::MULTI_TOKEN;

/// How experts are run, and over how many ranks they are spread: neighbours among those that shard the model.
pub(super) fn implementation(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (runtime, model, shard): (Runtime, &ModelConfig, u32),
    node: (u32, u64),
) -> Result<Implementation, ScenarioError> {
    let (written, mesh) = (&scenario.framework, scenario.mesh.get_ref());
    let Some(experts) = &model.experts else {
        let problem = |what: &str| format!("{what}, and {} has none", model.name);
        if let Some(at) = &mesh.ep {
            return Err(reader.plan(at, problem("mesh.ep spreads experts over ranks"), "remove mesh.ep"));
        }
        return match &written.experts {
            Some(at) => {
                let problem = problem("framework.experts says how experts are run");
                Err(reader.plan(at, problem, "remove framework.experts"))
            }
            None => Ok(Implementation::default()),
        };
    };
    let style = written.experts.as_ref().map(|at| *at.get_ref());
    let whose = match style {
        Some(ExpertStyle::Torchtitan) => Some("torchtitan's mixtures"),
        Some(ExpertStyle::ExpertChoice) => Some("experts that choose their tokens"),
        _ => None,
    };
    if let Some(whose) = whose.filter(|_| runtime != FSDP2) {
        let at = written.experts.as_ref().map_or_else(|| reader.place(&scenario.runtime), |at| reader.place(at));
        let problem = format!("{whose} run under fully_shard");
        return Err(ScenarioError::Plan { problem, place: at, remedy: "write runtime = \"fsdp2\"".to_owned() });
    }
    let Some(at) = mesh.ep.as_ref().filter(|at| *at.get_ref() != 1) else {
        if style == Some(ExpertStyle::Torchtitan) {
            balancing(reader, model, experts);
        }
        return Ok(match style {
            Some(ExpertStyle::Torchtitan) => Implementation::Torchtitan { ranks: 1 },
            Some(ExpertStyle::ExpertChoice) => {
                choice(reader, scenario, model, experts)?;
                Implementation::ExpertChoice
            }
            Some(ExpertStyle::Grouped) => Implementation::Grouped,
            Some(ExpertStyle::Loop) => Implementation::Loop,
            None => reader.assume("framework.experts", Implementation::Loop, "\"loop\""),
        });
    };
    let ranks = reader.count("mesh.ep", at, 1, MOST_RANKS)?;
    if !matches!(style, None | Some(ExpertStyle::Torchtitan)) || runtime != FSDP2 {
        let problem = "outside Megatron-Core, experts are spread over ranks as torchtitan does it under fully_shard";
        let remedy = "write framework.experts = \"torchtitan\" and runtime = \"fsdp2\", or remove mesh.ep";
        return Err(reader.plan(at, problem, remedy));
    }
    for (what, count) in [("ranks that shard the model", u64::from(shard)), ("experts of each block", experts.count)] {
        if !count.is_multiple_of(ranks) {
            let problem = format!("mesh.ep = {ranks} does not divide the {count} {what}");
            return Err(reader.plan(at, problem, "write a divisor of both"));
        }
    }
    let (nodes, inside) = node;
    if nodes > 1 && !inside.is_multiple_of(ranks) {
        reader.assumptions.push(format!(
            "note: mesh.ep = {ranks} leaves the {inside} chips of a node, so rows cross the network four times a block"
        ));
    }
    balancing(reader, model, experts);
    let all = Implementation::Torchtitan { ranks };
    Ok(if style.is_none() { reader.assume("framework.experts", all, "\"torchtitan\"") } else { all })
}

/// What experts that choose their tokens cannot have beside them.
fn choice(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    experts: &Experts,
) -> Result<(), ScenarioError> {
    if let Some(at) = scenario.model.get_ref().expert_load.as_ref().filter(|_| experts.load != Load::Balanced) {
        let problem = "experts that choose their tokens take as many each, and model.expert_load says otherwise";
        let remedy = "remove model.expert_load, or write framework.experts = \"grouped\"";
        return Err(reader.plan(at, problem, remedy));
    }
    if experts.auxiliary_loss {
        let note = "needs no loss that balances experts where those choose their tokens: it is left out";
        reader.assumptions.push(format!("note: {} {note}", model.name));
    }
    Ok(())
}

/// Notes of what torchtitan's mixtures balance experts by, where the model says otherwise.
fn balancing(reader: &mut Reader<'_>, model: &ModelConfig, experts: &Experts) {
    if !experts.router.correction {
        reader.assumptions.push(format!(
            "note: torchtitan balances experts by a bias of the router, which {} does not have",
            model.name
        ));
    }
    if experts.auxiliary_loss {
        reader.assumptions.push(format!("note: torchtitan trains {} without its auxiliary loss", model.name));
    }
}

impl Scenario {
    /// Refuses what no runtime here has rules for, before a program is compiled from it.
    pub fn simulable(&self) -> Result<(), ScenarioError> {
        let Some(what) = self.job.refuses() else { return Ok(()) };
        if let (Parts::Split(_), true) = (self.job.parts(), what.contains("fp8")) {
            let problem = format!(
                "{} needs {what}: Transformer Engine refuses it, or it is not simulated",
                self.job.model().name
            );
            let remedy =
                "write another megatron.fp8 or remove it, or take sizes of which each rank's part is a multiple of 128";
            return Err(ScenarioError::Plan {
                problem,
                place: Box::new(self.model_at.clone()),
                remedy: remedy.to_owned(),
            });
        }
        let remedy = match self.job.parts() {
            Parts::Whole(_) if what.starts_with("selective checkpointing") => {
                "write activation_checkpointing.policy = \"full\" or \"none\""
            }
            Parts::Whole(_) => {
                "`windtunnel show model` describes it; to fly it, take mixtral-8x7b or qwen3-30b-a3b as they are, or a \
                 dense model"
            }
            Parts::Split(_) if what.contains(MULTI_TOKEN) => "write megatron.mtp_num_layers = 0 to train without it",
            Parts::Split(job) if job.model.experts.is_none() => {
                "`windtunnel show model` describes it; to fly it, change the key of [megatron] or [mesh] that this speaks of, \
                 or take another model"
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
