//! A job of the SPMD lane as understood. What the file leaves open is what MaxText's `configs/base.yml` has for it
//! (e591f30cb), and is listed.

use toml::{Spanned, Value};

use super::entry::{Base, Decided, Entry, Rerun, Runtime};
use super::error::ScenarioError;
use super::reader::Reader;
use super::written::{Eight, ExpertExchange, Moment};
use super::{by_compiler, foreign, machine, names, optimizer, written};
use crate::cost::{Regime, Software};
use crate::hardware::{LevelKind, OnTorus, Topology, Vendor};
use crate::model::ModelConfig;
use crate::near::did_you_mean;
use crate::plan::optimizer::OptaxOf;
use crate::plan::xla::flags::{self, Named};
use crate::runtime;
use crate::runtime::spmd::{
    Attention, Backend as Plan, Flags, Keep, Mesh, Policy, Quantization, Run, TENSORS, Targets, Windows, XlaPlan,
};
use crate::units::Finite;

mod attention;
mod gpu;
mod mesh;
mod pipeline;
mod rules;
mod torch;

pub(super) use mesh::sharers;
pub(super) use torch::TORCH_XLA;

/// XLA SPMD, on TPUs and on GPUs.
pub(super) const XLA: Runtime = Runtime(&Entry {
    written: names::XLA,
    also: &["jax", "maxtext", "tpu", "spmd"],
    name: "XLA SPMD",
    lane: "ZeRO-3-shaped sharding on XLA",
    splits_model: false,
    recompute: Rerun {
        key: "xla.remat_policy",
        values: &[
            "none",
            "minimal_with_context",
            "minimal",
            "minimal_offloaded",
            "save_dot_except_mlpwi",
            "save_dot_except_mlp",
            "save_dot_with_context_except_mlp",
            "save_qkv_proj",
            "save_out_proj",
            "qkv_proj_offloaded",
            "full",
        ],
        beside: &[
            "xla.decoder_layer_input",
            "xla.query_proj",
            "xla.key_proj",
            "xla.value_proj",
            "xla.context",
            "xla.out_proj",
            "xla.mlpwi_0",
            "xla.mlpwi_1",
            "xla.mlpwo",
        ],
    },
    vendor: Vendor::Google,
    also_on: &[Vendor::Nvidia],
    decide,
});

fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    foreign::check(reader, base.runtime)?;
    let none = written::Xla::default();
    let table = base.scenario.xla.as_ref().map_or(&none, Spanned::get_ref);
    gpu::check(reader, &base, table)?;
    let Base { scenario, runtime, topology, profile, model, seq, micro, accumulation, .. } = base;
    let on_gpus = gpu::is_gpu(topology);
    if let Some(at) = scenario.batch.accumulation.as_ref().filter(|_| on_gpus && accumulation > 1) {
        let problem = "gradient accumulation is not simulated on XLA for GPUs";
        return Err(reader.plan(at, problem, "write batch.accumulation = 1, and a larger batch.micro"));
    }
    let rules = rules::read(reader, scenario.mesh.get_ref()).map_err(|why| by_compiler::named(why, topology))?;
    let mesh = mesh::mesh(reader, (&scenario.mesh, &rules), topology)?;
    mesh::divides(reader, &scenario.mesh, (&model, mesh))?;
    let remat = policy(reader, table)?;
    let pipeline = pipeline::pipeline(reader, (table, &scenario.mesh), (&model, mesh), (micro, remat));
    let pipeline = pipeline.map_err(|why| by_compiler::named(why, topology))?;
    let attention = if on_gpus { gpu::attention(reader, table)? } else { attention::attention(reader, table)? };
    let vocab_tiling = reader.count_or(&written::Xla::num_vocab_tiling, table.num_vocab_tiling.as_ref(), 1)?;
    if let (Some(at), false) = (&table.num_vocab_tiling, (micro * seq).is_multiple_of(vocab_tiling)) {
        let problem = format!("num_vocab_tiling = {vocab_tiling} does not divide the {} tokens of a chip", micro * seq);
        return Err(reader.plan(at, problem, "write a divisor of them"));
    }
    let syncs = table.host_syncs_per_step.as_ref();
    let multi_steps = match table.optax_multi_steps {
        None if accumulation > 1 => reader.assume("xla.optax_multi_steps", false, false),
        written => written.unwrap_or(false),
    };
    let half_weights =
        table.weight_dtype.unwrap_or_else(|| reader.assume("xla.weight_dtype", Moment::Float32, "float32"))
            == Moment::Bfloat16;
    // `mu_dtype` is the weights' where nothing is said (optax's `scale_by_adam`).
    let moment = if half_weights { (Moment::Bfloat16, "bfloat16") } else { (Moment::Float32, "float32") };
    let optax = optimizer::optax(reader, &scenario.optimizer, runtime);
    let optax = optax.map_err(|why| by_compiler::named(why, topology))?;
    let scan = reader.flag(&written::Xla::scan_layers, table.scan_layers.as_ref().map(|at| *at.get_ref()));
    let (compiler_flags, flags, backend) = if on_gpus {
        let (flags, backend) = gpu::flags(reader, table)?;
        (Named::new(), flags, backend)
    } else {
        let (named, flags) = flags(reader, table)?;
        (named, flags, Plan::Tpu)
    };
    let job = XlaPlan {
        batch: micro,
        seq,
        mesh,
        pipeline,
        remat,
        scan,
        attention,
        compiler_flags,
        flags,
        backend,
        windows: windows(topology, mesh),
        targets: table.targets.unwrap_or_else(|| reader.assume("xla.targets", Targets::OneHot, "one_hot")),
        vocab_tiling,
        iota_embed: reader.flag(&written::Xla::use_iota_embed, table.use_iota_embed),
        capacity_factor: capacity(reader, table, &model)?,
        send_tokens: send_tokens(reader, table, (&model, mesh, &scenario.mesh))
            .map_err(|why| by_compiler::named(why, topology))?,
        ring_of_experts: sorted_over_axis(table, &model, mesh)
            && table.expert_exchange.as_ref().is_some_and(|at| *at.get_ref() == ExpertExchange::Ring),
        ragged_buffer: ragged_buffer(reader, table, sorted_over_axis(table, &model, mesh))?,
        clip: reader.flag(&written::Xla::gradient_clipping, table.gradient_clipping),
        float32_scores: match (attention, table.float32_qk_product) {
            (Attention::DotProduct, written) => reader.flag_or("xla.float32_qk_product", written, false),
            (_, written) => written.unwrap_or(false),
        },
        norm_by_product: match (remat, table.norm_by_product) {
            (Policy::None, written) => reader.flag_or("xla.norm_by_product", written, false),
            (_, written) => written.unwrap_or(false),
        },
        quantization: quantization(reader, table, topology)?,
        activation_embed: match (table.activation_embed, rules.activation_embed) {
            (None, _) if mesh.tensor == 1 => false,
            (None, Some(ruled)) => ruled,
            (written, _) => reader.flag(&written::Xla::activation_embed, written),
        },
        accumulation: accumulation as u32,
        multi_steps,
        half_weights,
        optax,
        half_moment: match table.mu_dtype {
            None if optax != OptaxOf::Adamw => false,
            written => written.unwrap_or_else(|| reader.assume("xla.mu_dtype", moment.0, moment.1)) == Moment::Bfloat16,
        },
        run: run(reader, table)?,
        host_syncs: reader.count_or(&written::Xla::host_syncs_per_step, syncs, 0)? as u32,
        hbm: if on_gpus { gpu::pool(reader, table, topology)? } else { topology.chip.memory },
        torch: None,
        model,
    };
    let (attention, blocks) = match on_gpus {
        true => (gpu::kernels(reader, profile, job.attention), None),
        false => attention::splash(reader, (table, topology), &job)?,
    };
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let software = Software { attention, blocks, rail, ..Software::default() };
    Ok(Decided { job: runtime::Plan::Xla(job), regime: Regime::Sustained, software, expandable_segments: false })
}

/// The run that compiling is spread over; how long it is may stay open.
fn run(reader: &mut Reader<'_>, table: &written::Xla) -> Result<Run, ScenarioError> {
    let steps = match &table.steps {
        Some(at) => Some(reader.count(&written::Xla::steps, at)?),
        None => None,
    };
    if table.steps.is_none() && table.shapes.is_none() && table.persistent_cache.is_none() {
        return Ok(Run { steps, shapes: 1, cached: false });
    }
    let shapes = reader.count_or(&written::Xla::shapes, table.shapes.as_ref(), 1)?;
    let cached = reader.flag_or("xla.persistent_cache", table.persistent_cache, false);
    if let (Some(at), Some(steps)) = (&table.shapes, steps)
        && shapes > steps
    {
        let problem = format!("{shapes} shapes in {steps} steps");
        return Err(reader.plan(at, problem, "a step has one shape: write as many steps, or fewer shapes"));
    }
    Ok(Run { steps, shapes, cached })
}

/// What linears of blocks multiply in: int8 where a chip has no units for fp8, fp8 where it has.
fn quantization(
    reader: &Reader<'_>,
    table: &written::Xla,
    topology: &Topology,
) -> Result<Option<Quantization>, ScenarioError> {
    let fixed = table.fixed_calibration.as_ref();
    let Some(at) = &table.quantization else {
        return match fixed {
            Some(at) => Err(reader.plan(
                at,
                "fixed_calibration is about eight bits",
                "write xla.quantization, or remove the key",
            )),
            None => Ok(None),
        };
    };
    let has = topology.chip.peak.fp8.is_some();
    match (at.get_ref(), fixed) {
        (Eight::Fp8Full, _) if !has => {
            let problem = format!("{} has no units for fp8", topology.chip.name);
            Err(reader.plan(at, problem, "write quantization = \"int8\", or take tpu-v7x"))
        }
        (Eight::Int8, _) if has && !gpu::is_gpu(topology) => {
            let problem = format!("nobody published how fast {} is in int8", topology.chip.name);
            Err(reader.plan(at, problem, "write quantization = \"fp8_full\""))
        }
        (Eight::Int8, Some(fixed)) => {
            Err(reader.plan(fixed, "int8 is scaled by each operand's own maximum", "remove the key"))
        }
        (Eight::Int8, None) => Ok(Some(Quantization::Int8)),
        (Eight::Fp8Full, fixed) => {
            Ok(Some(Quantization::Fp8Full { fixed: fixed.is_some_and(|fixed| *fixed.get_ref()) }))
        }
    }
}

/// What of forward is kept.
fn policy(reader: &mut Reader<'_>, table: &written::Xla) -> Result<Policy, ScenarioError> {
    let written = table.tensors().into_iter().zip(TENSORS).find_map(|(at, name)| Some((at.as_ref()?, name)));
    let Some(at) = &table.remat_policy else {
        if let Some((at, name)) = written {
            let problem = format!("xla.{name} goes with a custom policy");
            return Err(reader.plan(at, problem, "write remat_policy = \"custom\""));
        }
        return Ok(reader.assume("xla.remat_policy", Policy::NAMED[1].1, "full"));
    };
    if at.get_ref() == "custom" {
        let mut names = [Keep::Remat; TENSORS.len()];
        for (place, tensor) in table.tensors().into_iter().enumerate() {
            names[place] = match tensor {
                Some(tensor) if place == 0 && *tensor.get_ref() == Keep::Remat => {
                    let problem = "a block's input cannot be computed again";
                    return Err(reader.plan(tensor, problem, "write \"device\" or \"offload\""));
                }
                Some(tensor) => *tensor.get_ref(),
                None if place == 0 => reader.assume("xla.decoder_layer_input", Keep::Device, "device"),
                None => Keep::Remat,
            };
        }
        return Ok(Policy::Names(names));
    }
    let Some((name, policy)) = Policy::NAMED.iter().find(|(name, _)| name == at.get_ref()) else {
        let names: Vec<&str> = Policy::NAMED.iter().map(|(name, _)| *name).collect();
        let hint = did_you_mean(at.get_ref(), names.iter().copied().chain(["custom"]));
        let problem = format!("there is no remat_policy {:?}{hint}", at.get_ref());
        return Err(reader.unknown(at, problem, format!("write one of: {}, custom", names.join(", "))));
    };
    match written {
        Some((tensor, key)) => {
            let problem = format!("xla.{key} goes with a custom policy, and the policy is {name:?}");
            Err(reader.plan(tensor, problem, "remove the key, or write remat_policy = \"custom\""))
        }
        None => Ok(*policy),
    }
}

/// How many places experts have.
fn capacity(reader: &Reader<'_>, table: &written::Xla, model: &ModelConfig) -> Result<Option<Finite>, ScenarioError> {
    let Some(at) = &table.capacity_factor else { return Ok(None) };
    let factor = *at.get_ref();
    if model.experts().is_none() {
        let problem = format!("xla.capacity_factor says how many places experts have, and {} has none", model.name);
        return Err(reader.plan(at, problem, "remove the key"));
    }
    if !(factor.is_finite() && (0.01..=1e3).contains(&factor)) {
        let problem = format!("xla.capacity_factor = {factor}");
        return Err(reader.plan(at, problem, "write places over tokens sent, such as 1.25"));
    }
    Ok(Some(Finite::nearest(factor)))
}

/// Whether tokens go over the expert axis.
fn send_tokens(
    reader: &mut Reader<'_>,
    table: &written::Xla,
    (model, mesh, at): (&ModelConfig, Mesh, &Spanned<written::Mesh>),
) -> Result<bool, ScenarioError> {
    let axis = u64::from(mesh.expert);
    let experts = model.experts().filter(|_| axis > 1);
    if experts.is_none() && mesh.experts_only {
        let problem = format!("mesh.expert = {axis} holds experts alone by the rules, and {} has none", model.name);
        return Err(reader.plan(at, problem, "write mesh.expert = 1"));
    }
    let Some(experts) = experts else {
        let Some(written) = &table.expert_exchange else { return Ok(false) };
        let problem = "xla.expert_exchange says what goes over the expert axis, and no experts are spread over one";
        return Err(reader.plan(written, problem, "write mesh.expert and a model with experts, or remove the key"));
    };
    if !experts.count.is_multiple_of(axis) {
        let problem = format!("mesh.expert = {axis} does not divide the {} experts of {}", experts.count, model.name);
        return Err(reader.plan(at, problem, "write a divisor, or shard over mesh.fsdp"));
    }
    let sorted = table.capacity_factor.is_none();
    if sorted && mesh.experts_only {
        let problem = "sorted experts over an axis that holds experts alone are not simulated on XLA";
        let remedy =
            "write xla.capacity_factor = 1.0, or let the axis hold a part of the batch, as MaxText's own rules do";
        return Err(reader.plan(at, problem, remedy));
    }
    if sorted {
        let weights = |at: &&Spanned<ExpertExchange>| *at.get_ref() == ExpertExchange::Weights;
        return match table.expert_exchange.as_ref().filter(weights) {
            Some(written) => {
                let problem = "sorted experts stay where they are (MaxText's `sparse_matmul`), and tokens go to them";
                Err(reader.plan(written, problem, "write \"tokens\" or \"ring\", or xla.capacity_factor = 1.0"))
            }
            None => Ok(true),
        };
    }
    if let Some(written) = table.expert_exchange.as_ref().filter(|at| *at.get_ref() == ExpertExchange::Ring) {
        let problem =
            "a ring of experts sorts tokens by their experts, and xla.capacity_factor gives each as many places";
        return Err(reader.plan(written, problem, "remove xla.capacity_factor, or write \"tokens\""));
    }
    if mesh.experts_only {
        let Some(written) = &table.expert_exchange else { return Ok(false) };
        let problem = "by the rules chips of the expert axis have the same tokens, and what they make is summed";
        return Err(reader.plan(written, problem, "remove xla.expert_exchange"));
    }
    Ok(match &table.expert_exchange {
        Some(written) => *written.get_ref() == ExpertExchange::Tokens,
        None => reader.assume("xla.expert_exchange", false, "weights"),
    })
}

/// Whether experts that sort their rows are spread over an axis.
fn sorted_over_axis(table: &written::Xla, model: &ModelConfig, mesh: Mesh) -> bool {
    table.capacity_factor.is_none() && mesh.expert > 1 && model.experts().is_some()
}

/// The buffer that sorted copies come into, over even shares.
fn ragged_buffer(reader: &Reader<'_>, table: &written::Xla, sorted: bool) -> Result<Option<Finite>, ScenarioError> {
    let Some(at) = &table.ragged_buffer_factor else { return Ok(None) };
    let factor = *at.get_ref();
    let ring = table.expert_exchange.as_ref().is_some_and(|at| *at.get_ref() == ExpertExchange::Ring);
    if !sorted || ring {
        let problem =
            "xla.ragged_buffer_factor sizes the buffer that sorted copies of tokens come into over an expert axis";
        return Err(reader.plan(at, problem, "remove the key, or write mesh.expert without xla.capacity_factor"));
    }
    if !(factor.is_finite() && (1.0..=1e3).contains(&factor)) {
        let problem = format!("xla.ragged_buffer_factor = {factor}: even shares fill a buffer of 1.0");
        return Err(reader.plan(at, problem, "write rows over those of even shares, such as 2.0"));
    }
    Ok(Some(Finite::nearest(factor)))
}

/// What the compiler's partitioner takes the chip and the axes of a weight's shards to be.
fn windows(topology: &Topology, mesh: Mesh) -> Windows {
    let torus = topology.fabric.iter().find_map(|level| match &level.kind {
        LevelKind::Torus { axes, links } => {
            Some((axes, f64::from(topology.chip.devices) * level.bandwidth.0 * 2.0 / f64::from(*links)))
        }
        _ => None,
    });
    // One chip has nobody to exchange with.
    let apart = mesh.dcn_data * mesh.data == 1;
    let Some((axes, axis)) = torus else { return Windows { even_rows: None, axes: 1, apart } };
    let on = topology.on_torus(mesh.shards(), mesh.tensor, &mesh.in_slice());
    let closed = |on: OnTorus| axes.iter().zip(on.lines).filter(|(axis, line)| axis.wraps && line.wraps).count() as u32;
    let long: Vec<u32> = axes.iter().map(|axis| axis.size).filter(|&size| size > 1).collect();
    let square = long == [2, 2];
    let more = if square { 1 } else { on.map_or(0, closed) };
    let even_rows = Some(Finite::nearest(topology.chip.peak.bf16.0 / axis));
    Windows { even_rows, axes: 1 + more, apart }
}

/// The compiler's flags, and what they let it do.
fn flags(reader: &mut Reader<'_>, table: &written::Xla) -> Result<(Named, Flags), ScenarioError> {
    let Some(list) = &table.flags else {
        return Ok((Named::new(), reader.assume("xla.flags", Flags::DEFAULT, Value::Array(vec![]))));
    };
    let words: Vec<&str> = list.iter().map(|at| at.get_ref().as_str()).collect();
    let named = flags::named(&words).map_err(|flags::Unknown(word)| {
        let known: Vec<&str> = flags::GROUPS.iter().map(|(name, _)| *name).collect();
        let hint = did_you_mean(&word, known.iter().copied());
        let problem = format!("{word:?} is neither a group of flags nor a flag{hint}");
        let remedy =
            format!("write a flag as \"xla_tpu_scoped_vmem_limit_kib=98304\", or some of: {}", known.join(", "));
        let at = list.iter().find(|at| *at.get_ref() == word).map_or(0..0, Spanned::span);
        reader.plan(&Spanned::new(at, ()), problem, remedy)
    })?;
    let idle = Flags::idle(&words);
    if !idle.is_empty() {
        reader.note(format!("xla.flags: the compiler gets them, and no prediction reads them: {}.", idle.join(", ")));
    }
    let flags = Flags::of(&named);
    Ok((named, flags))
}
