//! The axes of Megatron-Core's mesh, and what they split.

use toml::Spanned;

use super::super::keys::row::Key;
use crate::hardware::Topology;
use crate::model::ModelConfig;
use crate::runtime::megatron::{Mesh, Sharing};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::tensor;
use crate::scenario::written;

/// The mesh, which must tile the topology exactly; `dp` is what the other axes leave.
pub(in crate::scenario) fn mesh(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    topology: &Topology,
) -> Result<Mesh, ScenarioError> {
    let written = scenario.mesh.get_ref();
    let mut axis = |key: &Key, at: &Option<Spanned<i64>>| reader.count_or(key, at.as_ref(), 1);
    let tp = axis(&written::Mesh::tp, &written.tp)?;
    let cp = axis(&written::Mesh::cp, &written.cp)?;
    let pp = axis(&written::Mesh::pp, &written.pp)?;
    let chips = u64::from(topology.ranks());
    let model = tp.saturating_mul(cp).saturating_mul(pp);
    if !chips.is_multiple_of(model) {
        let axes = || [("tp", tp), ("cp", cp), ("pp", pp)].into_iter().filter(|&(_, ranks)| ranks > 1);
        let names: Vec<&str> = axes().map(|(name, _)| name).collect();
        let sizes: Vec<String> = axes().map(|(_, ranks)| ranks.to_string()).collect();
        let product = if sizes.len() > 1 { format!(" = {model}") } else { String::new() };
        let problem = format!(
            "{} = {}{product} does not divide the {chips} chips of {} ({})",
            names.join(" × "),
            sizes.join(" × "),
            topology.name,
            topology.size_in_words()
        );
        // The first axis from which on they do not.
        let mut product = 1_u64;
        let at = [(&written.tp, tp), (&written.cp, cp), (&written.pp, pp)].into_iter().find_map(|(at, ranks)| {
            product = product.saturating_mul(ranks);
            at.as_ref().filter(|_| !chips.is_multiple_of(product))
        });
        let place = at.map_or_else(|| reader.place(&scenario.mesh), |at| reader.place(at));
        let remedy = "write axes whose product divides it, or change the topology's size".to_owned();
        return Err(ScenarioError::Plan { code: None, problem, place, remedy });
    }
    let rest = chips / model;
    let dp = match &written.dp {
        None => reader.assume_for("mesh.dp", rest, rest, format!("{chips} chips / tp·cp·pp = {model}")),
        Some(at) => reader.count(&written::Mesh::dp, at)?,
    };
    if let (Some(at), true) = (&written.dp, dp != rest) {
        let problem = format!(
            "the mesh holds {} ranks but the topology has {chips} chips ({} of {})",
            dp.saturating_mul(model),
            topology.size_in_words(),
            topology.name
        );
        let remedy = format!("mesh.dp must be {rest} beside tp·cp·pp = {model}; or change the topology's size");
        return Err(reader.plan(at, problem, remedy));
    }
    let inside = u64::from(topology.ranks_per_node());
    if tp > 1 && topology.nodes > 1 && !inside.is_multiple_of(tp) {
        reader.note(format!(
            "mesh.tp = {tp} leaves the {inside} chips of a node, so every block waits for the network four times"
        ));
    }
    let span = tp.saturating_mul(cp);
    if cp > 1 && topology.nodes > 1 && !inside.is_multiple_of(span) {
        reader.note(format!(
            "mesh.tp × mesh.cp = {span} leaves the {inside} chips of a node, so keys and values cross the network in \
             every block"
        ));
    }
    let sharing = Sharing::ring();
    Ok(Mesh { tp: tp as u32, cp: cp as u32, sharing, dp: dp as u32, pp: pp as u32, ep: 1, etp: tp as u32 })
}

/// `--sequence-parallel`.
pub(in crate::scenario) fn sequence_parallel(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    mesh: Mesh,
) -> Result<bool, ScenarioError> {
    let written = scenario.tensor_parallel.as_ref().map(|table| table.get_ref().sequence);
    match (&scenario.tensor_parallel, mesh.tp) {
        (Some(at), 1) if written != Some(Some(false)) => {
            let problem = "[tensor_parallel] says how a model is split, and mesh.tp does not split it";
            Err(reader.plan(at, problem, "write mesh.tp = 2 or more, or remove the table"))
        }
        (_, 1) => Ok(false),
        _ => Ok(reader.flag(&written::TensorParallel::sequence, written.flatten())),
    }
}

/// What each rank gets must be whole: heads, and equal parts of everything else.
pub(in crate::scenario) fn divides(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    (model, seq): (&ModelConfig, u64),
    (mesh, sequence_parallel): (Mesh, bool),
) -> Result<(), ScenarioError> {
    let written = scenario.mesh.get_ref();
    let (tp, cp) = (u64::from(mesh.tp), u64::from(mesh.cp));
    if let Some(at) = written.cp.as_ref().filter(|_| cp > 1) {
        // Each of the ranks has two parts of a sequence, so that under a causal mask all have as much to do.
        let parts = 2 * cp;
        if !seq.is_multiple_of(parts) {
            let problem =
                format!("mesh.cp = {cp} cuts a sequence into {parts} parts, and {seq} tokens are no multiple");
            let more = seq.next_multiple_of(parts);
            return Err(reader.plan(at, problem, format!("write batch.sequence = {more}, or a smaller mesh.cp")));
        }
    }
    let Some(at) = written.tp.as_ref().filter(|_| tp > 1) else { return Ok(()) };
    // Experts are split over ranks of their own.
    let ffn = if model.expert_blocks() == model.layers.count() { 0 } else { model.feed_forward_width() };
    let sequence = if sequence_parallel { seq / cp } else { 0 };
    let sizes = [
        ("query heads", model.heads()),
        ("key-value heads", model.kv_heads()),
        ("numbers of feed-forward width", ffn),
        (if cp > 1 { "tokens of a rank's part of a sequence" } else { "tokens of a sequence" }, sequence),
    ];
    match tensor::indivisible(scenario, &sizes, (tp, tp * u64::from(mesh.dp)), (seq, cp)) {
        Some((what, remedy)) => {
            Err(reader.plan(at, format!("mesh.tp = {tp} does not divide the {what} of {}", model.name), remedy))
        }
        None => Ok(()),
    }
}
