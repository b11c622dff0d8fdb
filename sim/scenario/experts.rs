//! `framework.experts` and `mesh.ep` as understood.

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::FSDP2;
use super::reader::Reader;
use super::written::{self, ExpertStyle};
use crate::model::ModelConfig;
use crate::model::experts::{Experts, Implementation};
use crate::model::routing::Load;
use crate::runtime::fsdp::Version;
use crate::runtime::{Parts, Plan, train};

/// How experts are run, and over how many ranks they are spread: neighbours among those that shard the model.
pub(super) fn implementation(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (runtime, model, shard): (Runtime, &ModelConfig, u32),
    node: (u32, u64),
) -> Result<Implementation, ScenarioError> {
    let (written, mesh) = (&scenario.framework, scenario.mesh.get_ref());
    let Some(experts) = model.experts() else {
        let problem = |what: &str| format!("{what}, and {} has none", model.name);
        if let Some(at) = &mesh.ep {
            return Err(reader.plan(at, problem("mesh.ep spreads experts over ranks"), "remove mesh.ep"));
        }
        // A release says how experts are run for models that have them.
        let release = written.release.as_ref().map(|at| at.span());
        return match written.experts.as_ref().filter(|at| Some(at.span()) != release) {
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
        return Err(ScenarioError::Plan {
            code: None,
            problem,
            place: at,
            remedy: "write runtime = \"fsdp2\"".to_owned(),
        });
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
            None => {
                let why = "transformers 5 and torchtitan";
                reader.assume_for("framework.experts", Implementation::Grouped, "grouped", why)
            }
        });
    };
    let ranks = reader.count(&written::Mesh::ep, at)?;
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
        reader.note(format!(
            "mesh.ep = {ranks} leaves the {inside} chips of a node, so rows cross the network four times a block"
        ));
    }
    balancing(reader, model, experts);
    let all = Implementation::Torchtitan { ranks };
    Ok(if style.is_none() { reader.assume("framework.experts", all, "torchtitan") } else { all })
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
        reader.note(format!("{} {note}", model.name));
    }
    Ok(())
}

/// Notes of what torchtitan's mixtures balance experts by, where the model says otherwise.
fn balancing(reader: &mut Reader<'_>, model: &ModelConfig, experts: &Experts) {
    if !experts.router.correction {
        reader.note(format!("torchtitan balances experts by a bias of the router, which {} does not have", model.name));
    }
    if experts.auxiliary_loss {
        reader.note(format!("torchtitan trains {} without its auxiliary loss", model.name));
    }
}

/// Notes of what of a mixture costs more than it need.
pub(super) fn notes(reader: &mut Reader<'_>, job: &Plan) {
    let Some(experts) = job.model().experts() else { return };
    let Parts::Whole(job) = job.parts() else { return };
    if let Some(times) = filled_up(job) {
        let (count, shard, times) = (experts.count, job.fsdp.shard, (times * 100.0).round() / 100.0);
        reader.note(format!(
            "fully_shard cuts weights along their first dimension, of experts' the {count} experts, and fills that up for \
             dp_shard = {shard}: {times} times as much is kept and moved; framework.experts = \"torchtitan\" cuts another \
             dimension"
        ));
    }
}

/// How many times what experts' weights are `fully_shard` makes of them, where it fills up their first dimension
/// (`torch/distributed/fsdp/_fully_shard/_fsdp_param.py`, `_get_dim0_padded_size`). torchtitan has it cut another
/// (`shard_placement_fn`).
pub(super) fn filled_up(job: &train::TorchPlan) -> Option<f64> {
    let count = job.model.experts()?.count;
    let filled = count.next_multiple_of(u64::from(job.fsdp.shard));
    let cuts_first =
        job.fsdp.version == Version::Two && !matches!(job.style.experts, Implementation::Torchtitan { .. });
    (cuts_first && filled > count).then(|| filled as f64 / count as f64)
}
