//! What a file says of XLA on GPUs: attention, flags, and the share of memory that JAX takes.

use toml::{Spanned, Value};

use super::super::entry::Base;
use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written::{self, XlaAttention};
use crate::cost::{self, Profile};
use crate::hardware::{Topology, Vendor};
use crate::runtime::spmd::{Attention, Backend, Flags, GpuFlags, Overlap};
use crate::units::Bytes;

/// The share of a GPU's memory that JAX takes where nothing is said (`XLA_PYTHON_CLIENT_MEM_FRACTION`; jax@0.7.2,
/// `docs/gpu_memory_allocation.rst`).
const FRACTION: f64 = 0.75;

/// Whether a topology is of GPUs.
pub(super) fn is_gpu(topology: &Topology) -> bool {
    topology.chip.vendor == Vendor::Nvidia
}

/// Refuses keys that are of the other machine.
pub(super) fn check(reader: &Reader<'_>, base: &Base<'_>, table: &written::Xla) -> Result<(), ScenarioError> {
    let mesh = base.scenario.mesh.get_ref();
    if !is_gpu(base.topology) {
        if let Some(at) = &base.scenario.topology.nic_bandwidth {
            return Err(refused(reader, at, ("topology.nic_bandwidth", "GPUs' nodes, and this is a TPU")));
        }
        return match &table.python_client_mem_fraction {
            Some(at) => Err(refused(reader, at, ("xla.python_client_mem_fraction", "GPUs, and this is a TPU"))),
            None => Ok(()),
        };
    }
    if let Some(at) = &mesh.logical_axis_rules {
        let problem = "sharding rules of one's own are not simulated on XLA for GPUs";
        return Err(reader.plan(at, problem, "remove the key"));
    }
    let over_slices = [
        ("mesh.dcn_data", &mesh.dcn_data),
        ("mesh.dcn_pipeline", &mesh.dcn_pipeline),
        ("mesh.dcn_fsdp", &mesh.dcn_fsdp),
        ("mesh.dcn_fsdp_transpose", &mesh.dcn_fsdp_transpose),
        ("mesh.dcn_context", &mesh.dcn_context),
        ("mesh.dcn_expert", &mesh.dcn_expert),
        ("mesh.dcn_tensor", &mesh.dcn_tensor),
    ];
    for (key, at) in over_slices {
        if let Some(at) = at.as_ref().filter(|at| *at.get_ref() != 1) {
            let problem = format!("{key} counts slices of TPUs, and these are GPUs");
            let remedy = "write mesh.data = N in its place: its ranks are furthest apart, one a node where mesh.fsdp fills a node";
            return Err(reader.plan(at, problem, remedy));
        }
    }
    let switches = [
        ("xla.sa_use_fused_bwd_kernel", &table.sa_use_fused_bwd_kernel),
        ("xla.use_tokamax_splash", &table.use_tokamax_splash),
    ];
    let splash = "splash attention, a kernel for TPUs, and these are GPUs";
    for (key, at) in switches {
        if let Some(at) = at {
            return Err(refused(reader, at, (key, splash)));
        }
    }
    match &table.sa_block_size {
        Some(at) => Err(refused(reader, at, ("xla.sa_block_size", splash))),
        None => Ok(()),
    }
}

fn refused<T>(reader: &Reader<'_>, at: &Spanned<T>, (key, of): (&str, &str)) -> ScenarioError {
    reader.plan(at, format!("{key} is of {of}"), format!("remove {key}"))
}

/// How attention is computed on GPUs.
pub(super) fn attention(reader: &mut Reader<'_>, table: &written::Xla) -> Result<Attention, ScenarioError> {
    let Some(at) = &table.attention else {
        let why = "what MaxText's configurations for GPUs write";
        return Ok(reader.assume_for("xla.attention", Attention::Cudnn { named: true }, "cudnn_flash_te", why));
    };
    match at.get_ref() {
        XlaAttention::DotProduct => Ok(Attention::DotProduct),
        XlaAttention::CudnnFlashTe => Ok(Attention::Cudnn { named: true }),
        XlaAttention::CudnnFlashJax => Ok(Attention::Cudnn { named: false }),
        XlaAttention::Flash => {
            let problem = "attention = \"flash\" is a Pallas kernel on GPUs, which nobody has published times of";
            Err(reader.plan(at, problem, "write attention = \"cudnn_flash_te\""))
        }
    }
}

/// Whose kernels have the times: cuDNN's, or FlashAttention's where a profile has none of cuDNN's.
pub(super) fn kernels(reader: &mut Reader<'_>, profile: &Profile, attention: Attention) -> cost::Backend {
    if profile.attention.has(cost::Backend::Cudnn) {
        return cost::Backend::Cudnn;
    }
    if attention != Attention::DotProduct {
        let name = &profile.name;
        reader.note(format!("the profile {name} has no cudnn attention kernels: they take FlashAttention 2's times"));
    }
    cost::Backend::Flash2
}

/// What the flags of XLA:GPU let the compiler do.
pub(super) fn flags(reader: &mut Reader<'_>, table: &written::Xla) -> Result<(Flags, Backend), ScenarioError> {
    let flags = match &table.flags {
        None => reader.assume("xla.flags", GpuFlags::DEFAULT, Value::Array(vec![])),
        Some(list) => {
            let words: Vec<&str> = list.iter().map(|at| at.get_ref().as_str()).collect();
            GpuFlags::of(&words).map_err(|wrong| {
                let at = list.get(wrong.at).map_or(0..0, Spanned::span);
                reader.plan(&Spanned::new(at, ()), wrong.problem, wrong.remedy)
            })?
        }
    };
    let how = if flags.latency_hiding { Overlap::Asynchronous } else { Overlap::None };
    let shared = Flags {
        gather_forward: how,
        gather_backward: how,
        scatter: how,
        windows: false,
        all_reduce_and_slice: false,
        scoped_vmem_kib: None,
    };
    Ok((shared, Backend::Gpu(flags)))
}

/// What JAX takes of a GPU's memory.
pub(super) fn pool(reader: &mut Reader<'_>, table: &written::Xla, topology: &Topology) -> Result<Bytes, ScenarioError> {
    let fraction = match &table.python_client_mem_fraction {
        None => reader.assume("xla.python_client_mem_fraction", FRACTION, FRACTION),
        Some(at) if (0.01..=1.0).contains(at.get_ref()) => *at.get_ref(),
        Some(at) => {
            let problem = format!("xla.python_client_mem_fraction = {}", at.get_ref());
            return Err(reader.plan(at, problem, "write a share of the memory from 0.01 to 1, such as 0.9"));
        }
    };
    Ok(Bytes((topology.chip.memory.0 as f64 * fraction) as u64))
}
