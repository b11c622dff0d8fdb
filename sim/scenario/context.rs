//! `mesh.cp` under FSDP2 as understood: PyTorch's context parallelism.

use super::change::Change;
use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::FSDP2;
use super::reader::Reader;
use super::written;
use crate::hardware::Topology;
use crate::model::{ModelConfig, Position};
use crate::runtime::compiled::{Method, Rotate};

/// The ranks that share a sequence.
pub(super) fn context(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (runtime, topology, model, seq): (Runtime, &Topology, &ModelConfig, u64),
    tensor: u64,
) -> Result<(u32, Rotate), ScenarioError> {
    const KEY: &str = "framework.context_parallel_rotate_method";
    const BALANCE: &str = "framework.context_parallel_load_balancer";
    let method = scenario.framework.context_parallel_rotate_method.as_ref();
    let balancer = scenario.framework.context_parallel_load_balancer.as_ref();
    let written = scenario.mesh.get_ref().cp.as_ref();
    let ranks = written.map_or(Ok(1), |at| reader.count(&written::Mesh::cp, at))?;
    let Some(at) = written.filter(|_| ranks > 1) else {
        let remedy = |key: &str| {
            let two = Change::set("mesh.cp", 2);
            let (change, words) = match scenario.compile.compiles_blocks() {
                true => (two, "write mesh.cp = 2 or more"),
                false => (
                    two.and(Change::set("compile.blocks", true)),
                    "write mesh.cp = 2 or more and compile.blocks = true",
                ),
            };
            reader.remedy(&[(Change::remove(key), "remove the key"), (change, words)])
        };
        let problem = |key| format!("{key} says how ranks share a sequence, and mesh.cp does not split it");
        return match (method, balancer) {
            (Some(at), _) => Err(reader.plan(at, problem(KEY), remedy(KEY))),
            (None, Some(at)) => Err(reader.plan(at, problem(BALANCE), remedy(BALANCE))),
            (None, None) => Ok((1, Rotate::default())),
        };
    };
    if runtime != FSDP2 {
        let problem = format!("context parallelism with {} is not simulated", runtime.name());
        return Err(reader.plan(at, problem, "write runtime = \"fsdp2\" or \"megatron\", or mesh.cp = 1"));
    }
    if !scenario.compile.compiles_blocks() {
        let problem =
            "context parallelism is modelled in compiled blocks alone, where exchanges are waited for at once";
        return Err(reader.plan(at, problem, "write compile.blocks = true, or mesh.cp = 1"));
    }
    let parts = 2 * ranks;
    // Ranks that do not tile the machine are refused with the rest of the mesh.
    let tiles = u64::from(topology.ranks()).is_multiple_of(tensor * ranks);
    if tiles && !seq.is_multiple_of(parts) {
        let problem = format!("mesh.cp = {ranks} cuts a sequence into {parts} parts, and {seq} tokens are no multiple");
        let more = seq.next_multiple_of(parts);
        return Err(reader.plan(at, problem, format!("write batch.sequence = {more}, or a smaller mesh.cp")));
    }
    let windows = model.layers.iter().any(|layer| layer.window().is_some());
    for (applies, what) in [
        (windows, "a sliding window"),
        (model.position == Position::Alibi, "attention biases"),
        (model.experts().is_some(), "a mixture of experts"),
    ] {
        if applies {
            let problem = format!("context parallelism of {what} is not modelled");
            return Err(reader.plan(at, problem, "write mesh.cp = 1"));
        }
    }
    let (inside, span) = (u64::from(topology.ranks_per_node()), ranks.saturating_mul(tensor));
    if topology.nodes > 1 && !inside.is_multiple_of(span) {
        reader.note(format!(
            "mesh.tp × mesh.cp = {span} leaves the {inside} chips of a node, so keys and values cross the network in \
             every block"
        ));
    }
    let method = match method {
        Some(at) => *at.get_ref(),
        None => reader.assume(KEY, Method::default(), "allgather"),
    };
    let balanced = match balancer {
        Some(at) => *at.get_ref() == written::LoadBalancer::HeadTail,
        None => reader.assume(BALANCE, true, "headtail"),
    };
    Ok((ranks as u32, Rotate { method, balanced }))
}
