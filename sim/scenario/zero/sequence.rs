//! Ranks that share a sequence under ZeRO as understood (`sequence_parallel_size`): what
//! `deepspeed/runtime/sequence_parallel/ulysses_sp.py` (0.19.6) itself refuses, and what of it has no rules.

use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written::{self, Policy};
use crate::hardware::Topology;
use crate::model::{ModelConfig, Position};
use crate::runtime::zero::Zero;

/// Whether so many ranks can share a sequence of the model.
pub(super) fn check(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (model, seq, topology): (&ModelConfig, u64, &Topology),
    zero: &Zero,
) -> Result<(), ScenarioError> {
    let ranks = u64::from(zero.sequence);
    let Some(at) = scenario.mesh.get_ref().cp.as_ref().filter(|_| ranks > 1) else { return Ok(()) };
    let (heads, kv) = (model.heads(), model.kv_heads());
    let name = &model.name;
    let chips = u64::from(topology.ranks());
    // What another number of ranks leaves is another number of replicas.
    let rest = if scenario.mesh.get_ref().dp.is_some() { ", and leave mesh.dp open" } else { "" };
    let remedy = |reader: &Reader<'_>, problem: String| {
        let fit = |ranks: u64| {
            heads.is_multiple_of(ranks)
                && (kv.is_multiple_of(ranks) || ranks.is_multiple_of(kv))
                && chips.is_multiple_of(ranks)
                && seq.is_multiple_of(ranks)
        };
        let fitting: Vec<String> = (1..ranks).filter(|&less| fit(less)).map(|less| less.to_string()).collect();
        reader.plan(at, problem, format!("write mesh.cp = {}{rest}", fitting.join(" or ")))
    };
    if !heads.is_multiple_of(ranks) {
        return Err(remedy(reader, format!("mesh.cp = {ranks} does not divide the {heads} heads of {name}")));
    }
    if !kv.is_multiple_of(ranks) && !ranks.is_multiple_of(kv) {
        let problem = format!("of mesh.cp = {ranks} and the {kv} key-value heads of {name} neither divides the other");
        return Err(remedy(reader, problem));
    }
    if !seq.is_multiple_of(ranks) {
        let problem = format!("mesh.cp = {ranks} does not divide a sequence of {seq} tokens");
        let more = seq.next_multiple_of(ranks);
        return Err(reader.plan(at, problem, format!("write batch.sequence = {more}, or a smaller mesh.cp")));
    }
    let without_rules = [
        (
            model.position == Position::Alibi,
            "biases on scores have no rules where ranks share a sequence: DeepSpeed drops masks",
        ),
        (
            model.has_windows(),
            "sliding windows have no rules where ranks share a sequence: DeepSpeed drops masks, and all tokens would be seen",
        ),
        (
            model.latent().is_some(),
            "latent attention has no rules where ranks share a sequence: DeepSpeed wants keys and values of one shape",
        ),
        (
            zero.quantized.gradients.is_some(),
            "zero.zero_quantized_gradients has no rules where ranks share a sequence: gradients are then reduced in fp32",
        ),
    ];
    if let Some((_, problem)) = without_rules.into_iter().find(|&(applies, _)| applies) {
        return Err(reader.plan(at, problem, format!("write mesh.cp = 1{rest}")));
    }
    if let Some(at) = scenario
        .activation_checkpointing
        .policy
        .as_ref()
        .filter(|at| matches!(at.get_ref(), Policy::SelectiveOp | Policy::Save(_)))
    {
        let problem = "selective checkpointing where ranks share a sequence has no rules";
        return Err(reader.plan(at, problem, format!("write policy = \"full\", or mesh.cp = 1{rest}")));
    }
    let inside = topology.ranks_per_node();
    if topology.nodes > 1 && !inside.is_multiple_of(zero.sequence) {
        reader.note(format!(
            "mesh.cp = {ranks} leaves the {inside} chips of a node, so heads and tokens change hands over the network \
             in every block"
        ));
    }
    Ok(())
}
