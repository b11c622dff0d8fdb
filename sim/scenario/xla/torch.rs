//! A job of PyTorch/XLA as understood: FSDPv2, and `mark_sharding` on the weights of a Llama, as torch_xla 2.9 traces them.

use toml::Spanned;

use super::super::entry::{Base, Decided, Entry, Rerun, Runtime};
use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written::{self, TorchAttention, TorchPrecision};
use super::super::{foreign, machine, names};
use super::{attention, capacity, flags, mesh, run, windows};
use crate::cost::{Backend, Regime, Software};
use crate::hardware::{Topology, Vendor};
use crate::model::ModelConfig;
use crate::plan::optimizer::OptaxOf;
use crate::plan::xla::{TorchXla, Written};
use crate::runtime;
use crate::runtime::spmd::{Attention, Backend as Compiler, Mesh, Policy, Run, Targets, XlaPlan};
use crate::units::Finite;

/// PyTorch/XLA SPMD, on TPUs.
pub(in crate::scenario) const TORCH_XLA: Runtime = Runtime(&Entry {
    written: names::TORCH_XLA,
    also: &["torch-xla", "pytorch-xla", "fsdpv2", "torchprime"],
    name: "PyTorch/XLA",
    lane: "PyTorch/XLA SPMD",
    splits_model: false,
    recompute: Rerun { key: "torch_xla.gradient_checkpointing", values: &["false", "true"], beside: &[] },
    vendor: Vendor::Google,
    also_on: &[],
    decide,
});

/// Queries and keys of a block of the Pallas kernel (torch_xla 2.9, `experimental/custom_kernel.py`).
const KERNEL_BLOCK: u64 = 512;

fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    foreign::check(reader, base.runtime)?;
    let Base { scenario, topology, profile, model, seq, micro, accumulation, .. } = base;
    let (none, alone) = (written::TorchXla::default(), written::Xla::default());
    let table = scenario.torch_xla.as_ref().map_or(&none, Spanned::get_ref);
    let xla = scenario.xla.as_ref().map_or(&alone, Spanned::get_ref);
    if profile.lazy.is_none() {
        let problem = format!("the profile {} does not say what PyTorch/XLA takes on the host", profile.name);
        let remedy =
            "take another profile, or add its sections lazy.forward, lazy.backward, lazy.sync and lazy.parameter";
        return Err(reader.plan(&scenario.runtime, problem, remedy));
    }
    let mesh = axes(reader, &scenario.mesh, (&model, topology))?;
    mesh::divides(reader, &scenario.mesh, (&model, mesh))?;
    let capacity_factor = experts(reader, xla, (&model, &scenario.mesh, mesh.expert))?;
    let attention = match &table.attention {
        None => reader.assume("torch_xla.attention", TorchAttention::Sdpa, "sdpa"),
        Some(at) => *at.get_ref(),
    };
    let written = match attention {
        TorchAttention::Eager => Written::Matmul,
        TorchAttention::Einsum => Written::Einsum,
        TorchAttention::Sdpa => Written::Sdpa,
        TorchAttention::Flash => Written::Flash,
    };
    let autocast = match table.precision {
        None => reader.assume("torch_xla.precision", TorchPrecision::Autocast, "autocast"),
        Some(precision) => precision,
    } == TorchPrecision::Autocast;
    let syncs = match &table.sync_every_micro_batch {
        Some(at) => *at.get_ref() && accumulation > 1,
        None if accumulation > 1 => reader.assume("torch_xla.sync_every_micro_batch", true, true),
        None => false,
    };
    let torch = TorchXla { attention: written, autocast, syncs };
    if torch.whole_heads() && mesh.tensor > 1 {
        let name = if written == Written::Sdpa { "sdpa" } else { "eager" };
        reader.note(format!(
            "Attention of {name:?} flattens sequences and heads for its matmuls, and the spec of heads is lost: all {} chips of \
             mesh.tensor compute all heads. Write torch_xla.attention = \"flash\" or \"einsum\".",
            mesh.tensor
        ));
    }
    let remat = match reader.flag(&written::TorchXla::gradient_checkpointing, table.gradient_checkpointing) {
        true => Policy::NAMED.iter().find(|(name, _)| *name == "full").map_or(Policy::None, |(_, policy)| *policy),
        false => Policy::None,
    };
    let (compiler_flags, flags) = flags(reader, xla)?;
    let run = run(reader, xla)?;
    let syncs_of_host = reader.count_or(&written::Xla::host_syncs_per_step, xla.host_syncs_per_step.as_ref(), 0)?;
    let job = XlaPlan {
        batch: micro,
        seq,
        mesh,
        pipeline: None,
        remat,
        scan: false,
        attention: match attention {
            TorchAttention::Flash => Attention::Splash { fused_backward: false, block: KERNEL_BLOCK },
            _ => Attention::DotProduct,
        },
        float32_scores: false,
        norm_by_product: false,
        quantization: None,
        activation_embed: false,
        accumulation: accumulation as u32,
        multi_steps: syncs,
        half_weights: !autocast,
        optax: OptaxOf::Adamw,
        half_moment: !autocast,
        compiler_flags,
        flags,
        windows: windows(topology, mesh),
        targets: Targets::OneHot,
        vocab_tiling: 1,
        iota_embed: false,
        capacity_factor,
        send_tokens: false,
        ring_of_experts: false,
        ragged_buffer: None,
        clip: reader.flag(&written::TorchXla::clip_grad_norm, table.clip_grad_norm),
        backend: Compiler::Tpu,
        hbm: topology.chip.memory,
        // The first step has no optimizer states yet, and is a graph of its own.
        run: Run { shapes: run.shapes + 1, ..run },
        host_syncs: syncs_of_host as u32,
        torch: Some(torch),
        model,
    };
    let blocks = attention::blocks(job.attention);
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let software = Software { attention: Backend::Splash, blocks, rail, ..Software::default() };
    Ok(Decided { job: runtime::Plan::Xla(job), regime: Regime::Sustained, software, expandable_segments: false })
}

/// Axes, whose product is the chips of a slice; `fsdp` takes what the others leave.
fn axes(
    reader: &mut Reader<'_>,
    written: &Spanned<written::Mesh>,
    (model, topology): (&ModelConfig, &Topology),
) -> Result<Mesh, ScenarioError> {
    let at = written.get_ref();
    let slices = u64::from(topology.slices());
    let ranks = u64::from(topology.ranks()) / slices;
    let dcn_data = match &at.dcn_data {
        Some(at) => reader.count(&written::Mesh::dcn_data, at)?,
        None if slices > 1 => reader.assume("mesh.dcn_data", slices, slices),
        None => 1,
    };
    if dcn_data != slices {
        let problem = format!("mesh.dcn_data = {dcn_data}, and {slices} slices are rented");
        return Err(reader.plan(written, problem, format!("write mesh.dcn_data = {slices}: each slice is a replica")));
    }
    let data = reader.count_or(&written::Mesh::data, at.data.as_ref(), 1)?;
    let tensor = reader.count_or(&written::Mesh::tensor, at.tensor.as_ref(), 1)?;
    let expert = match (&at.expert, model.experts()) {
        (None, None) => 1,
        (at, _) => reader.count_or(&written::Mesh::expert, at.as_ref(), 1)?,
    };
    let others = u128::from(data) * u128::from(expert) * u128::from(tensor);
    let fsdp = match &at.fsdp {
        Some(at) => reader.count(&written::Mesh::fsdp, at)?,
        None => {
            let rest = u64::try_from(u128::from(ranks) / others).unwrap_or(1).max(1);
            reader.assume("mesh.fsdp", rest, rest)
        }
    };
    if others * u128::from(fsdp) != u128::from(ranks) {
        let problem = format!(
            "data × fsdp × expert × tensor = {data} × {fsdp} × {expert} × {tensor} = {}, and a slice of {} has {ranks} {}s",
            others * u128::from(fsdp),
            topology.name,
            topology.rank_is()
        );
        let remedy = format!("write axes whose product is the {}s of a slice", topology.rank_is());
        return Err(reader.plan(written, problem, remedy));
    }
    let [dcn_data, data, fsdp, expert, tensor] = [dcn_data, data, fsdp, expert, tensor].map(|size| size as u32);
    // Experts lie on their axis, and what is sent to their places is cut on data alone (GShard's einsums).
    Ok(Mesh { dcn_data, data, fsdp, expert, tensor, experts_only: expert > 1, ..Mesh::ONE })
}

/// Places of experts: without them there is nothing of a shape that a compiler could have.
fn experts(
    reader: &Reader<'_>,
    table: &written::Xla,
    (model, at, axis): (&ModelConfig, &Spanned<written::Mesh>, u32),
) -> Result<Option<Finite>, ScenarioError> {
    let factor = capacity(reader, table, model)?;
    match model.experts() {
        None if axis > 1 => {
            let problem = format!("mesh.expert = {axis} holds experts, and {} has none", model.name);
            Err(reader.plan(at, problem, "write mesh.expert = 1"))
        }
        Some(experts) if !experts.count.is_multiple_of(u64::from(axis)) => {
            let problem =
                format!("mesh.expert = {axis} does not divide the {} experts of {}", experts.count, model.name);
            Err(reader.plan(at, problem, "write a divisor"))
        }
        Some(_) if factor.is_none() => {
            let problem = "experts of PyTorch/XLA are simulated with places (GShard's einsums) alone";
            Err(reader.plan(at, problem, "write xla.capacity_factor, such as 1.25"))
        }
        _ => Ok(factor),
    }
}
