//! `mesh.tp` and `[tensor_parallel]` as understood, with the check of what they split.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::FSDP2;
use super::reader::Reader;
use super::written;
use crate::hardware::Topology;
use crate::model::fuse::float8::MULTIPLE;
use crate::model::style::Modules;
use crate::model::tensor::TensorParallel;
use crate::model::{ModelConfig, NormPlacement, QkNorm};
use crate::runtime::train::{KeepLogits, TorchPlan};

/// How the model is split.
pub(super) fn tensor(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
    topology: &Topology,
) -> Result<TensorParallel, ScenarioError> {
    let written = scenario.tensor_parallel.as_ref().map(Spanned::get_ref);
    let mesh = scenario.mesh.get_ref();
    let ranks = match &mesh.tp {
        Some(at) => reader.count(&written::Mesh::tp, at)?,
        None => 1,
    };
    let (Some(at), true) = (&mesh.tp, ranks > 1) else {
        return match &scenario.tensor_parallel {
            Some(at) => {
                let problem = "[tensor_parallel] says how a model is split, and mesh.tp does not split it";
                Err(reader.plan(at, problem, "write mesh.tp = 2 or more, or remove the table"))
            }
            None => Ok(TensorParallel::NONE),
        };
    };
    if runtime != FSDP2 {
        let problem = format!("tensor parallelism with {} is not simulated", runtime.name());
        return Err(reader.plan(at, problem, "write runtime = \"fsdp2\", or mesh.tp = 1"));
    }
    let inside = u64::from(topology.ranks_per_node());
    if !inside.is_multiple_of(ranks) {
        reader.note(format!(
            "mesh.tp = {ranks} leaves the {inside} chips of a node, so every block waits for the network four times"
        ));
    }
    if !scenario.compile.compiles_blocks() {
        reader.note("what DTensor's dispatch costs the host is not priced");
    }
    let sequence = written.and_then(|table| table.sequence);
    let asynchronous = asynchronous(reader, scenario, (inside, ranks))?;
    let loss = written.and_then(|table| table.loss);
    Ok(TensorParallel {
        ranks,
        sequence: reader.flag(&written::TensorParallel::sequence, sequence),
        loss: reader.flag(&written::TensorParallel::loss, loss),
        asynchronous,
    })
}

/// Whether exchanges run in parts beside matmuls.
fn asynchronous(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (inside, ranks): (u64, u64),
) -> Result<bool, ScenarioError> {
    let written = scenario.tensor_parallel.as_ref().map(Spanned::get_ref);
    let Some(at) = written.and_then(|table| table.asynchronous.as_ref()).filter(|at| *at.get_ref()) else {
        return Ok(false);
    };
    if !scenario.compile.compiles_blocks() {
        let problem = "the compiler finds what overlaps with what, and layers are not compiled";
        return Err(reader.plan(at, problem, "write compile.blocks = true, or asynchronous = false"));
    }
    if written.is_some_and(|table| table.sequence == Some(false)) {
        let problem = "an all-reduce has no parts: only gathers and reduce-scatters overlap with matmuls";
        return Err(reader.plan(at, problem, "write sequence = true, or asynchronous = false"));
    }
    if !inside.is_multiple_of(ranks) {
        let problem =
            format!("ranks read each other's memory, and mesh.tp = {ranks} leaves the {inside} chips of a node");
        return Err(reader.plan(at, problem, "write asynchronous = false, or keep mesh.tp inside a node"));
    }
    reader.note("a part of an exchange that overlaps with matmuls is priced as a collective of its size");
    Ok(true)
}

/// What a rank's part of the model must be: whole heads, and equal parts of everything else.
pub(super) fn check(reader: &Reader<'_>, scenario: &written::Scenario, job: &TorchPlan) -> Result<(), ScenarioError> {
    let (ranks, model) = (job.tensor.ranks, &job.model);
    let (Some(at), true) = (&scenario.mesh.get_ref().tp, job.tensor.splits()) else { return Ok(()) };
    let sequence = if job.tensor.sequence { job.own_tokens() } else { 0 };
    let sizes = [
        ("key-value heads", model.kv_heads()),
        ("query heads", model.heads()),
        ("numbers of feed-forward width", model.feed_forward_width()),
        ("words", model.vocab),
        ("tokens of a sequence", sequence),
    ];
    let replicas = u64::from(job.fsdp.shard / job.context * job.fsdp.replicate);
    let whole = indivisible(scenario, &sizes, (ranks, ranks * replicas), (job.seq, u64::from(job.context)));
    if let Some((what, remedy)) = whole {
        let problem = format!("mesh.tp = {ranks} does not divide the {what} of {}", model.name);
        return Err(reader.plan(at, problem, remedy));
    }
    let narrow = |&size: &u64| !size.is_multiple_of(MULTIPLE);
    let sizes = [
        model.width,
        model.feed_forward_width() / ranks,
        model.heads() * model.head_dim() / ranks,
        model.kv_heads() * model.head_dim() / ranks,
    ];
    if let (Some(size), true) = (sizes.into_iter().find(narrow), job.float8.is_some()) {
        let problem = format!(
            "mesh.tp = {ranks} leaves linears of {size} rows or columns, and fp8 takes multiples of {MULTIPLE}"
        );
        return Err(reader.plan(at, problem, "write a smaller mesh.tp, or remove [float8]"));
    }
    if let Some(what) = unmodelled(model, job) {
        let problem = format!("tensor parallelism of {what} is not modelled yet");
        return Err(reader.plan(at, problem, "write mesh.tp = 1"));
    }
    Ok(())
}

/// The first of some sizes that `tp` ranks do not share equally, and what to write: fewer ranks that share all of them and of
/// which whole replicas fill `chips`, or a sequence of `cp` parts that they do share.
pub(super) fn indivisible(
    scenario: &written::Scenario,
    sizes: &[(&str, u64)],
    (tp, chips): (u64, u64),
    (sequence, cp): (u64, u64),
) -> Option<(String, String)> {
    let (what, size) = sizes.iter().find(|(_, size)| !size.is_multiple_of(tp))?;
    let shares =
        |fewer: &u64| chips.is_multiple_of(*fewer) && sizes.iter().all(|(_, size)| size.is_multiple_of(*fewer));
    // One rank splits nothing, and then the table says nothing.
    let table = scenario.tensor_parallel.is_some();
    let fewer: Vec<String> = (1..tp).skip(usize::from(table)).filter(shares).map(|fewer| fewer.to_string()).collect();
    let mut remedies = vec![];
    if what.ends_with("sequence") {
        let parts = if cp > 1 && !tp.is_multiple_of(2) { 2 * tp } else { tp };
        remedies.push(format!("batch.sequence = {}", sequence.next_multiple_of(cp * parts)));
    }
    if !fewer.is_empty() {
        remedies.push(format!("mesh.tp = {}", fewer.join(" or ")));
    }
    if remedies.is_empty() {
        remedies.push("mesh.tp = 1, and remove [tensor_parallel]".to_owned());
    }
    Some((format!("{size} {what}"), format!("write {}", remedies.join(", or "))))
}

/// The first thing in a job that no rule splits over ranks.
fn unmodelled(model: &ModelConfig, job: &TorchPlan) -> Option<&'static str> {
    // A norm of one head needs nothing of other ranks; its weight's gradient is a partial sum, as those of split sequences.
    let (headwise, whole_rows) = match model.qk_norm() {
        Some(QkNorm::PerHead) => (true, false),
        other => (false, other.is_some()),
    };
    let list = [
        (model.norms().placement != NormPlacement::Pre, "norms behind attention, or of parallel blocks"),
        (whole_rows || headwise && !job.tensor.sequence, "norms on queries and keys"),
        (model.has_biases(), "linears with biases"),
        (model.fuses_qkv(), "a fused projection of queries, keys and values"),
        (model.tied_head, "a head that is the embedding's table"),
        (model.embedding_norm.is_some(), "a norm on the embedding"),
        (matches!(model.position, crate::model::Position::Learned { .. }), "learned positions"),
        (model.position == crate::model::Position::Alibi, "attention biases"),
        (job.unpad, "packed tokens"),
        (job.style.modules == Modules::Transformers, "transformers' classes (framework.modules)"),
        (job.loss_inside, "a loss that the model computes itself (loss.inside_model)"),
        (!job.loss.sees_whole_logits() || job.loss.compiled(), "this loss"),
        (
            job.keep_logits != KeepLogits::No || job.training_loop.train_metrics > 0,
            "logits that the loop keeps or measures",
        ),
        (job.fsdp.cpu_offload, "parameters on the host"),
    ];
    list.into_iter().find(|&(applies, _)| applies).map(|(_, what)| what)
}
