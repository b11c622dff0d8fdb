//! A job of nanotron as understood. What the file leaves open is what `config/parallelism_config.py` and its examples have
//! for it (c2528430), and is listed.

use toml::Spanned;

use super::assumption::Written;
use super::entry::{Base, Decided, Entry, Rerun, Runtime};
use super::error::ScenarioError;
use super::megatron::{mesh, pipeline, precision};
use super::reader::Reader;
use super::{foreign, machine, names, written};
use crate::cost::{Backend, Software};
use crate::hardware::Vendor;
use crate::model::ModelConfig;
use crate::runtime;
use crate::runtime::megatron::{self, Block, CrossEntropy, Matmuls, Mesh, Pipeline, Recompute, Split};
use crate::runtime::nanotron::{NanotronPlan, placement};
use crate::schedule::order;
use crate::schedule::order::megatron::MEGATRON_1F1B;

/// nanotron.
pub(super) const NANOTRON: Runtime = Runtime(&Entry {
    written: names::NANOTRON,
    also: &[],
    name: "nanotron",
    lane: "nanotron (CUDA)",
    splits_model: true,
    recompute: Rerun { key: "nanotron.recompute_layer", values: &["false", "true"], beside: &[] },
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// Everything that nanotron leaves to the file.
pub(super) fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    let Base { scenario, runtime, topology, profile, model, seq, micro, accumulation, .. } = base;
    foreign::check(reader, runtime)?;
    let none = written::Nanotron::default();
    let table = scenario.nanotron.as_ref().map_or(&none, Spanned::get_ref);
    let mesh = mesh::mesh(reader, scenario, topology)?;
    if let Some(at) = scenario.mesh.get_ref().cp.as_ref().filter(|_| mesh.cp > 1) {
        let problem = "nanotron of March 2025 does not split sequences in attention";
        return Err(reader.plan(at, problem, "write mesh.cp = 1, or remove the key"));
    }
    if let Some(at) = scenario.tensor_parallel.as_ref().filter(|at| at.get_ref().sequence == Some(false)) {
        let problem = "of nanotron's tensor parallelism only REDUCE_SCATTER is simulated, which splits sequences";
        return Err(reader.plan(at, problem, "write tensor_parallel.sequence = true, or remove the table"));
    }
    tensor_mode(reader, table, mesh)?;
    mesh::divides(reader, scenario, (&model, seq), (mesh, true))?;
    let dtype = precision(reader, &scenario.precision)?;
    let pipeline = stages(reader, scenario, table, (&model, mesh, accumulation))?;
    let zero = match &table.zero_stage {
        None => reader.assume("nanotron.zero_stage", 0, 0),
        Some(at) => match *at.get_ref() {
            stage @ (0 | 1) => stage,
            other => {
                let problem = format!("nanotron.zero_stage = {other}");
                return Err(reader.plan(at, problem, "write 0, or 1 to share optimizer states"));
            }
        },
    };
    let cap = table.ddp_bucket_cap_mb.as_ref();
    let cap = reader.count_or(&written::Nanotron::ddp_bucket_cap_mb, cap, 25)?;
    let recompute = match reader.flag(&written::Nanotron::recompute_layer, table.recompute_layer) {
        true => Recompute::Uniform { layers: 1 },
        false => Recompute::None,
    };
    let gathers_again = reader.flag(&written::Nanotron::tp_recompute_allgather, table.tp_recompute_allgather);
    let regime = machine::regime(reader, &scenario.topology);
    machine::no_flex(reader, &scenario.attention)?;
    let attention = machine::attention(reader, &scenario.attention, profile, (Backend::Flash2, "it calls flash_attn"))?;
    let expandable_segments = reader.flag(&written::Memory::expandable_segments, scenario.memory.expandable_segments);
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let cublas = machine::cublas(reader, &scenario.framework, profile)?;
    let persistent_workspace = machine::keeps_workspaces(reader, &scenario.framework);
    let split = Split {
        mixture: None,
        model,
        batch: micro,
        seq,
        documents: None,
        micro_batches: accumulation as u32,
        mesh,
        sequence_parallel: mesh.tp > 1,
        overlap_tensor: None,
        pipeline,
        block: Block::own(recompute, CrossEntropy::Composed),
        matmuls: Matmuls::Plain,
        dtype,
        vocabulary_multiple: 1,
        workspace: profile.overheads.cublas_workspace.0,
        persistent_workspace,
        multiprocessors: topology.chip.cores,
        copies_gradients: false,
        trained: None,
    };
    reader.note("nanotron steps AdamW in one kernel, on gradients clipped to a norm");
    let job = runtime::Plan::Nanotron(NanotronPlan { split, zero: zero == 1, bucket: cap << 20, gathers_again });
    let software = Software { attention, deterministic: false, tf32: false, cublas, rail, blocks: None, disks: None };
    Ok(Decided { job, regime, software, expandable_segments })
}

/// `ALL_REDUCE`, which nanotron takes where its configuration says nothing, is not simulated.
fn tensor_mode(reader: &mut Reader<'_>, table: &written::Nanotron, mesh: Mesh) -> Result<(), ScenarioError> {
    match &table.tp_mode {
        Some(at) if *at.get_ref() == written::TensorMode::AllReduce && mesh.tp > 1 => {
            let problem =
                "nanotron's ALL_REDUCE is not simulated: there every rank has whole sequences between matmuls";
            Err(reader.plan(at, problem, "write nanotron.tp_mode = \"REDUCE_SCATTER\", or mesh.tp = 1"))
        }
        None if mesh.tp > 1 => {
            let why = "nanotron's own default, ALL_REDUCE, is not simulated";
            reader.assume_for("nanotron.tp_mode", (), "REDUCE_SCATTER", why);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Who runs which blocks, and in which order.
fn stages(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    table: &written::Nanotron,
    (model, mesh, micro_batches): (&ModelConfig, Mesh, u64),
) -> Result<Pipeline, ScenarioError> {
    let engine = table
        .pp_engine
        .unwrap_or_else(|| reader.assume("nanotron.pp_engine", written::Engine::AllForwardAllBackward, "afab"));
    let schedule = match engine {
        written::Engine::OneForwardOneBackward => &MEGATRON_1F1B,
        written::Engine::AllForwardAllBackward => order::find("AFAB").unwrap_or(&MEGATRON_1F1B),
    };
    let axis = scenario.mesh.get_ref().pp.as_ref().filter(|_| mesh.pp > 1);
    let Some(axis) = axis else {
        let whole = pipeline::pipeline(reader, scenario, model, (1, micro_batches, megatron::Engine::Core), None)?;
        return Ok(Pipeline { schedule, ..whole });
    };
    let written = scenario.pipeline.as_ref().map(Spanned::get_ref).filter(|table| table.layers.is_some());
    let layers = match written {
        Some(table) => pipeline::layers(reader, scenario, table, (model, u64::from(mesh.pp)))?,
        None => {
            let layers = placement(model, mesh.pp).ok_or_else(|| {
                let problem = format!("nanotron's balance leaves the last of {} stages without the head", mesh.pp);
                reader.plan(axis, problem, "write pipeline.layers, or a smaller mesh.pp")
            })?;
            let written = Written::from(layers.as_slice());
            reader.assume("pipeline.layers", layers, written)
        }
    };
    if engine == written::Engine::OneForwardOneBackward && micro_batches + 1 < u64::from(mesh.pp) {
        let problem = format!("{micro_batches} micro-batches are too few for 1F1B on {} stages", mesh.pp);
        let remedy = format!("write batch.accumulation = {} or more, or nanotron.pp_engine = \"afab\"", mesh.pp - 1);
        return Err(reader.plan(axis, problem, remedy));
    }
    Ok(Pipeline { schedule, virtual_stages: 1, layers, overlap_p2p: false, scatter_gather: false })
}
