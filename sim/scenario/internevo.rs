//! A job of InternEvo as understood. What the file leaves open is what `configs/7B_sft.py` (v0.1.0) has for it, and is
//! listed.

use toml::Spanned;

use super::entry::{Base, Decided, Entry, Rerun, Runtime};
use super::error::ScenarioError;
use super::megatron::{mesh, precision};
use super::reader::Reader;
use super::{foreign, machine, names, written};
use crate::cost::{Backend, Software};
use crate::hardware::Vendor;
use crate::runtime;
use crate::runtime::internevo::InternEvoPlan;
use crate::runtime::megatron::{Block, CrossEntropy, Matmuls, Mesh, Pipeline, Recompute, Split};
use crate::schedule::order::megatron::MEGATRON_1F1B;

/// Elements of a bucket: 512 Mi.
const BUCKET: u64 = 512 << 20;

/// InternEvo, InternLM's framework.
pub(super) const INTERNEVO: Runtime = Runtime(&Entry {
    written: names::INTERNEVO,
    also: &["internlm"],
    name: "InternEvo",
    lane: "InternEvo v0.1 (CUDA)",
    splits_model: true,
    recompute: Rerun { key: "internevo.checkpoint", values: &["false", "true"], beside: &[] },
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// Everything that InternEvo leaves to the file.
pub(super) fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    let Base { scenario, runtime, topology, profile, model, seq, micro, accumulation, .. } = base;
    foreign::check(reader, runtime)?;
    let none = written::InternEvo::default();
    let table = scenario.internevo.as_ref().map_or(&none, Spanned::get_ref);
    let mesh = mesh::mesh(reader, scenario, topology)?;
    let axes = scenario.mesh.get_ref();
    for (key, ranks, at) in [("cp", mesh.cp, &axes.cp), ("pp", mesh.pp, &axes.pp)] {
        if let Some(at) = at.as_ref().filter(|_| ranks > 1) {
            let problem = format!("InternEvo v0.1 has tensor and data parallelism, and mesh.{key} = {ranks}");
            return Err(reader.plan(at, problem, format!("write mesh.{key} = 1, or remove the key")));
        }
    }
    if let Some(at) = scenario.tensor_parallel.as_ref().filter(|at| at.get_ref().sequence == Some(true)) {
        let problem = "InternEvo v0.1 has no sequence parallelism";
        return Err(reader.plan(at, problem, "write tensor_parallel.sequence = false, or remove the table"));
    }
    mesh::divides(reader, scenario, (&model, seq), (mesh, false))?;
    if let Some(at) = axes.tp.as_ref().filter(|_| !model.vocab.is_multiple_of(u64::from(mesh.tp))) {
        // flash-attention's `ColumnParallelLinear`: out_features must be divisible by world_size.
        let problem = format!("mesh.tp = {} does not divide the {} words of {}", mesh.tp, model.vocab, model.name);
        return Err(reader.plan(at, problem, "write a divisor, or a multiple of it in model.vocab"));
    }
    let dtype = precision(reader, &scenario.precision)?;
    let zero1 = zero1(reader, table, mesh)?;
    let written = table.reduce_bucket_size.as_ref();
    let bucket = reader.count_or(&written::InternEvo::reduce_bucket_size, written, BUCKET)?;
    let checkpoint = reader.flag(&written::InternEvo::checkpoint, table.checkpoint);
    let regime = machine::regime(reader, &scenario.topology);
    machine::no_flex(reader, &scenario.attention)?;
    let attention = machine::attention(
        reader,
        &scenario.attention,
        profile,
        (Backend::Flash1, "InternEvo v0.1.0 installs flash-attention 1.0.5, doc/en/install.md:42"),
    )?;
    let expandable_segments = reader.flag(&written::Memory::expandable_segments, scenario.memory.expandable_segments);
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let cublas = machine::cublas(reader, &scenario.framework, profile)?;
    let persistent_workspace = machine::keeps_workspaces(reader, &scenario.framework);
    let layers = vec![model.layers.count()];
    let recompute = if checkpoint { Recompute::Uniform { layers: 1 } } else { Recompute::None };
    let split = Split {
        mixture: None,
        model,
        batch: micro,
        seq,
        documents: None,
        micro_batches: accumulation as u32,
        mesh,
        sequence_parallel: false,
        overlap_tensor: None,
        pipeline: Pipeline {
            schedule: &MEGATRON_1F1B,
            virtual_stages: 1,
            layers,
            overlap_p2p: false,
            scatter_gather: false,
        },
        block: Block::own(recompute, CrossEntropy::Compiled),
        matmuls: Matmuls::Plain,
        dtype,
        vocabulary_multiple: 1,
        workspace: profile.overheads.cublas_workspace.0,
        persistent_workspace,
        multiprocessors: topology.chip.cores,
        copies_gradients: false,
        trained: None,
    };
    reader.note("InternEvo steps torch's AdamW, one tensor after the other, on gradients clipped to a norm");
    let job = runtime::Plan::InternEvo(InternEvoPlan { split, zero1, bucket });
    let software = Software { attention, deterministic: false, tf32: false, cublas, rail, blocks: None, disks: None };
    Ok(Decided { job, regime, software, expandable_segments })
}

/// `Initializer_Zero1`: neighbouring replicas; all of them if the number is 0 or less.
fn zero1(reader: &mut Reader<'_>, table: &written::InternEvo, mesh: Mesh) -> Result<u32, ScenarioError> {
    let Some(at) = &table.zero1 else { return Ok(reader.assume("internevo.zero1", mesh.dp, -1)) };
    let written = *at.get_ref();
    if written <= 0 {
        return Ok(mesh.dp);
    }
    match u32::try_from(written) {
        Ok(zero1) if mesh.dp.is_multiple_of(zero1) => Ok(zero1),
        _ => {
            let problem = format!("internevo.zero1 = {written} does not divide the {} replicas", mesh.dp);
            Err(reader.plan(at, problem, format!("write a divisor of {}, or -1 for all of them", mesh.dp)))
        }
    }
}
