//! A job of Megatron-Core as understood. What the file leaves open is what `megatron/training/arguments.py` (0.16) has
//! for it, and is listed.

mod buffers;
mod context;
mod deepspeed;
mod deterministic;
mod experts;
mod fsdp;
mod graphs;
mod loader;
pub(super) mod mesh;
mod optimizer;
mod overlap;
pub(super) mod pipeline;
mod recompute;

use toml::Spanned;

use super::change::Change;
use super::entry::{Base, Decided, Entry, Rerun, Runtime};
use super::error::ScenarioError;
use super::float8::{self, Scaled};
use super::reader::Reader;
use super::{documents, foreign, gate, machine, names, trained, written};
use crate::cost::{Backend, Profile, Software};
use crate::hardware::{Topology, Vendor};
use crate::model::experts::Experts;
use crate::model::{ModelConfig, Norm, Position};
use crate::program::DType;
use crate::runtime;
use crate::runtime::eager::LayerNorm;
use crate::runtime::megatron::{
    Block, Core, CrossEntropy, Engine, Fp8Recipe, Gradients, Implementation, Matmuls, MegatronPlan, Mesh, Optimizer,
    Release, Split,
};

/// Megatron-Core.
pub(super) const MEGATRON: Runtime = Runtime(&Entry {
    written: names::MEGATRON,
    also: &["megatron-core", "megatron-lm", "mcore", "megatron-bridge", "nemo"],
    name: "Megatron-Core",
    lane: "Megatron-Core (CUDA)",
    splits_model: true,
    recompute: Rerun {
        key: "megatron.recompute",
        values: &["none", "core_attn", "block=1", "uniform=1"],
        beside: &["megatron.recompute_modules"],
    },
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// Megatron's modules in DeepSpeed's pipeline engine.
pub(super) const DEEPSPEED: Runtime = Runtime(&Entry {
    written: names::DEEPSPEED,
    also: &["megatron-deepspeed"],
    name: "Megatron-DeepSpeed",
    lane: "Megatron-DeepSpeed (DeepSpeed's pipeline engine, CUDA)",
    splits_model: true,
    recompute: Rerun { key: "megatron.recompute", values: &["none", "uniform=1"], beside: &[] },
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// Everything that Megatron-Core leaves to the file.
pub(super) fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    let Base { scenario, runtime, topology, profile, mut model, seq, micro, accumulation } = base;
    foreign::check(reader, runtime)?;
    let documents = documents::documents(reader, &scenario.batch, seq)?;
    let none = written::Megatron::default();
    let table = scenario.megatron.as_ref().map_or(&none, Spanned::get_ref);
    let engine = deepspeed::engine(reader, (scenario, table), runtime)?;
    mtp_layers(reader, table, &mut model)?;
    gate::positions(reader, scenario, &model, seq)?;
    let mesh = mesh::mesh(reader, scenario, topology)?;
    let sequence_parallel = mesh::sequence_parallel(reader, scenario, mesh)?;
    let mesh = experts::mesh(reader, scenario, (topology, &model), (mesh, sequence_parallel))?;
    mesh::divides(reader, scenario, (&model, seq), (mesh, sequence_parallel))?;
    let together = overlap::asked(reader, table, (&model, mesh))?;
    let mut pipeline = pipeline::pipeline(reader, scenario, &model, (mesh.pp, accumulation, engine), together)?;
    pipeline.scatter_gather = pipeline::scatter_gather(reader, scenario, (mesh, sequence_parallel, engine), &pipeline)?;
    let dtype = precision(reader, &scenario.precision)?;
    let block = block(reader, table, (&model, engine))?;
    recompute::fits(reader, table, (block.recompute, engine), &pipeline)?;
    let mesh = Mesh { sharing: context::sharing(reader, (scenario, table), (&model, mesh, &block))?, ..mesh };
    let mixture = experts::mixture(reader, table, &model, block.implementation)?;
    overlap::check(reader, together, (mixture, &block), (mesh.pp, pipeline.overlap_p2p))?;
    let loader = loader::loader(reader, table, (engine, mesh))?;
    let trained = trained::adapters(reader, scenario, block.recompute, dtype)?;
    let matmuls = matmuls(reader, table, (topology, profile), block.implementation)?;
    let overlap_tensor = buffers::asked(reader, table, (sequence_parallel, block.implementation), (mesh.tp, topology))?;
    let sharded =
        fsdp::asked(reader, (scenario, table), (&model, mesh, engine), (pipeline.virtual_stages, matmuls, dtype))?;
    let fused = match sharded {
        Some(key) => fsdp::fuses(reader, table, key)?,
        None => reader.flag_or(fsdp::FUSION, table.gradient_accumulation_fusion, engine == Engine::Core),
    };
    let gradients = gradients(reader, table, (mesh, dtype, fused))?;
    let optimizer = optimizer(reader, scenario, table, (gradients.overlap_reduce, pipeline.virtual_stages))?;
    let optimizer = optimizer::remainders(reader, table, optimizer, (dtype, matmuls))?;
    let sharded = sharded.map(|key| fsdp::settings(reader, (table, key), (gradients, optimizer))).transpose()?;
    if let (Some(at), Matmuls::Fp8 { parameters: true, .. }, false) =
        (&table.fp8_param_gather, matmuls, optimizer.distributed || trained.is_some())
    {
        let problem = "fp8_param_gather gathers what each rank has stepped, and every rank steps all parameters";
        return Err(reader.plan(at, problem, "write megatron.distributed_optimizer = true"));
    }
    let vocabulary_multiple = reader.count_or(
        &written::Megatron::make_vocab_size_divisible_by,
        table.make_vocab_size_divisible_by.as_ref(),
        128,
    )?;
    let checks_for_nan =
        reader.flag_or("megatron.check_for_nan", table.check_for_nan, dtype == DType::Bf16 && engine == Engine::Core);
    let settled = graphs::Settled {
        engine,
        model: &model,
        mesh,
        pipeline: &pipeline,
        block: &block,
        mixture,
        matmuls,
        checks_for_nan,
        fsdp: sharded.is_some(),
        blocking: scenario.framework.launch_blocking == Some(true),
        expandable: scenario.memory.expandable_segments == Some(true),
    };
    let graphs = graphs::asked(reader, table, &settled, together.is_some())?;
    reader.note("Adam steps all parameters of a group in one kernel (FusedAdam)");
    let regime = machine::regime(reader, &scenario.topology);
    machine::no_flex(reader, &scenario.attention)?;
    let attention = machine::attention(reader, &scenario.attention, profile, machine::engine_attention(topology))?;
    let deterministic = deterministic::asked(reader, (scenario, table), (attention, &model), engine)?;
    let expandable_segments = reader.flag(&written::Memory::expandable_segments, scenario.memory.expandable_segments);
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let cublas = machine::cublas(reader, &scenario.framework, profile)?;
    let persistent_workspace = machine::keeps_workspaces(reader, &scenario.framework);
    let split = Split {
        model,
        batch: micro,
        seq,
        documents,
        micro_batches: accumulation as u32,
        mesh,
        sequence_parallel,
        overlap_tensor,
        pipeline,
        block,
        mixture,
        matmuls,
        dtype,
        vocabulary_multiple,
        workspace: profile.overheads.cublas_workspace.0,
        persistent_workspace,
        multiprocessors: topology.chip.cores,
        copies_gradients: deterministic && attention == Backend::Flash2,
        trained,
    };
    let mut job = MegatronPlan { split, engine, loader, gradients, optimizer, fsdp: sharded, checks_for_nan, graphs };
    fsdp::unit(reader, table, &mut job)?;
    pipeline::check(reader, scenario, &job)?;
    // Transformer Engine multiplies in tf32 wherever operands and result are fp32, as of a router in fp32 backward
    // (`common/gemm/cublaslt_gemm.cu`).
    let tf32 = job.split.block.implementation == Implementation::TransformerEngine;
    let job = runtime::Plan::Megatron(job);
    let software = Software { attention, deterministic, tf32, cublas, rail, blocks: None, disks: None };
    Ok(Decided { job, regime, software, expandable_segments })
}

pub(super) fn precision(reader: &mut Reader<'_>, written: &written::Precision) -> Result<DType, ScenarioError> {
    match &written.param {
        None => Ok(reader.assume("precision.param", DType::Bf16, "bf16")),
        Some(at) => match *at.get_ref() {
            dtype @ (DType::Bf16 | DType::Fp16) => Ok(dtype),
            other => {
                let problem = format!("precision.param cannot be {} under megatron", other.name());
                let remedy = "write \"bf16\" or \"fp16\" (--bf16, --fp16); fp8 matmuls are megatron.fp8 = \"delayed\"";
                Err(reader.plan(at, problem, remedy))
            }
        },
    }
}

fn block(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (model, engine): (&ModelConfig, Engine),
) -> Result<Block, ScenarioError> {
    let implementation = match table.implementation {
        Some(written::Modules::TransformerEngine) => Implementation::TransformerEngine,
        Some(written::Modules::Local) => Implementation::Local,
        None if engine == Engine::DeepSpeed => reader.assume("megatron.implementation", Implementation::Local, "local"),
        None => reader.assume("megatron.implementation", Implementation::TransformerEngine, "transformer_engine"),
    };
    let scores = table.attention.unwrap_or_else(|| match implementation {
        Implementation::TransformerEngine => reader.assume("megatron.attention", written::Scores::Flash, "flash"),
        Implementation::Local => reader.assume("megatron.attention", written::Scores::Unfused, "unfused"),
    });
    let core = match scores {
        written::Scores::Flash => Core::Flash,
        written::Scores::Unfused => Core::Unfused {
            fused_softmax: reader.flag(&written::Megatron::masked_softmax_fusion, table.masked_softmax_fusion),
        },
    };
    let (recompute, recompute_modules) = recompute::asked(reader, table, (model, implementation))?;
    let fused_rope = match model.position {
        Position::Rope { .. } => reader.flag(&written::Megatron::rope_fusion, table.rope_fusion),
        _ => table.rope_fusion.unwrap_or(true),
    };
    Ok(Block {
        implementation,
        layer_norm: layer_norm(reader, table, (model.norms().kind, implementation, engine))?,
        core,
        hidden_dropout: reader.flag(&written::Megatron::hidden_dropout, table.hidden_dropout),
        attention_dropout: reader.flag(&written::Megatron::attention_dropout, table.attention_dropout),
        fused_activation: reader.flag(&written::Megatron::bias_activation_fusion, table.bias_activation_fusion),
        fused_squared_relu: fused_squared_relu(reader, table, model),
        fused_dropout: reader.flag(&written::Megatron::bias_dropout_fusion, table.bias_dropout_fusion),
        fused_rope,
        cross_entropy: cross_entropy(reader, table)?,
        release: release(reader, table, model),
        recompute,
        recompute_modules,
    })
}

/// Whether experts' squared ReLU is one kernel with the weights of their rows.
fn fused_squared_relu(reader: &mut Reader<'_>, table: &written::Megatron, model: &ModelConfig) -> bool {
    match &table.use_fused_weighted_squared_relu {
        Some(at) => *at.get_ref(),
        None if model.experts().is_some_and(Experts::square_relu) => {
            reader.assume("megatron.use_fused_weighted_squared_relu", false, false)
        }
        None => false,
    }
}

fn layer_norm(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (norm, implementation, engine): (Norm, Implementation, Engine),
) -> Result<LayerNorm, ScenarioError> {
    let own = matches!(norm, Norm::Layer { .. }) && implementation == Implementation::Local;
    match &table.layer_norm {
        Some(at) if !own => {
            let problem = "megatron.layer_norm says whose kernels Megatron's own LayerNorm is, and there is none here";
            Err(reader.plan(
                at,
                problem,
                "remove the key: Transformer Engine's norms, and RMSNorm, are one kernel each way",
            ))
        }
        Some(at) => Ok(match at.get_ref() {
            written::LayerNorm::Persistent => LayerNorm::Persistent,
            written::LayerNorm::Fused => LayerNorm::Apex,
            written::LayerNorm::Torch => LayerNorm::Torch,
        }),
        // bigscience's Megatron-DeepSpeed has no other (`megatron/model/fused_layer_norm.py`).
        None if own && engine == Engine::DeepSpeed => {
            Ok(reader.assume("megatron.layer_norm", LayerNorm::Apex, "fused"))
        }
        None if own => Ok(reader.assume("megatron.layer_norm", LayerNorm::Persistent, "persistent")),
        None => Ok(LayerNorm::Torch),
    }
}

/// Whose program runs; only logits differ.
fn release(reader: &mut Reader<'_>, table: &written::Megatron, model: &ModelConfig) -> Release {
    let te = table.cross_entropy_fusion_impl.as_ref().is_some_and(|at| *at.get_ref() == written::FusedLoss::Te);
    match table.core_version {
        Some(written::CoreVersion::V0_19) => Release::V0_19,
        Some(written::CoreVersion::V0_16) => Release::V0_16,
        None if te || model.mtp_layers > 0 => reader.assume("megatron.core_version", Release::V0_16, "0.16.1"),
        None => Release::V0_16,
    }
}

fn cross_entropy(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<CrossEntropy, ScenarioError> {
    let fused = reader.flag(&written::Megatron::cross_entropy_loss_fusion, table.cross_entropy_loss_fusion);
    match (&table.cross_entropy_fusion_impl, fused) {
        (Some(at), false) => {
            let problem = "cross_entropy_fusion_impl says whose fused loss it is, and the loss is not fused";
            Err(reader.plan(at, problem, "write megatron.cross_entropy_loss_fusion = true, or remove the key"))
        }
        (None, false) => Ok(CrossEntropy::Composed),
        (Some(at), true) if *at.get_ref() == written::FusedLoss::Te => Ok(match table.core_version {
            Some(written::CoreVersion::V0_19) => CrossEntropy::EngineCopy,
            _ => CrossEntropy::Engine,
        }),
        (Some(_), true) => Ok(CrossEntropy::Compiled),
        (None, true) => Ok(reader.assume("megatron.cross_entropy_fusion_impl", CrossEntropy::Compiled, "native")),
    }
}

/// Modules that predict tokens further ahead: as many as the model's file has, unless the key says otherwise.
fn mtp_layers(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    model: &mut ModelConfig,
) -> Result<(), ScenarioError> {
    const KEY: &str = "megatron.mtp_num_layers";
    let read = model.mtp_layers;
    model.mtp_layers = match &table.mtp_num_layers {
        Some(at) => reader.count(&written::Megatron::mtp_num_layers, at)?,
        None if read > 0 => reader.assume(KEY, read, read),
        None => 0,
    };
    Ok(())
}

fn matmuls(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    machine: (&Topology, &Profile),
    implementation: Implementation,
) -> Result<Matmuls, ScenarioError> {
    let Some(at) = &table.fp8 else {
        return match table.fp8_param_gather.as_ref().filter(|at| *at.get_ref()) {
            Some(at) => {
                let problem = "fp8_param_gather keeps parameters in fp8, and nothing multiplies in fp8";
                let steps = match table.distributed_optimizer {
                    Some(true) => "",
                    _ => "megatron.distributed_optimizer = true and ",
                };
                let recipes = "\"delayed\", \"tensorwise\", \"blockwise\" or \"mxfp8\"";
                let delayed = Change::set("megatron.distributed_optimizer", true);
                let delayed = delayed.and(Change::set("megatron.fp8", "delayed"));
                let remedy = reader.remedy(&[
                    (Change::remove("megatron.fp8_param_gather"), "remove the key"),
                    (delayed, &format!("write {steps}megatron.fp8 = {recipes}")),
                ]);
                Err(reader.plan(at, problem, remedy))
            }
            None => Ok(Matmuls::Plain),
        };
    };
    if implementation == Implementation::Local {
        let problem = "fp8 matmuls are Transformer Engine's, and megatron.implementation is \"local\"";
        return Err(reader.plan(at, problem, "write megatron.implementation = \"transformer_engine\""));
    }
    let recipe = match *at.get_ref() {
        written::Fp8::Delayed => Fp8Recipe::Delayed,
        written::Fp8::Tensorwise => Fp8Recipe::Tensorwise,
        written::Fp8::Blockwise => Fp8Recipe::Blockwise,
        written::Fp8::Mxfp8 => Fp8Recipe::Mxfp8,
    };
    let scaled = match recipe {
        Fp8Recipe::Blockwise => Scaled::Blocks,
        Fp8Recipe::Mxfp8 => Scaled::Microscaled,
        Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => Scaled::Wide,
    };
    if let Some((problem, instead)) = float8::lacks(machine, scaled) {
        return Err(reader.plan(at, problem, format!("remove megatron.fp8, or {instead}")));
    }
    if scaled == Scaled::Blocks {
        reader.note("megatron.fp8 = \"blockwise\" takes CUDA 12.9 or newer (check_fp8_block_scaling_support)");
    }
    let gathers = table.fp8_param_gather.as_ref().map(|at| *at.get_ref());
    let parameters = reader.flag(&written::Megatron::fp8_param_gather, gathers);
    Ok(Matmuls::Fp8 { recipe, parameters, any_layout: float8::any_layout(machine.0) })
}

fn gradients(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (mesh, dtype, fused): (Mesh, DType, bool),
) -> Result<Gradients, ScenarioError> {
    let fp32 = reader.flag_or("megatron.grad_reduce_in_fp32", table.grad_reduce_in_fp32, dtype == DType::Bf16);
    let overlap_reduce = reader.flag(&written::Megatron::overlap_grad_reduce, table.overlap_grad_reduce);
    let bucket = match (&table.bucket_size, overlap_reduce) {
        (Some(at), true) => Some(reader.count(&written::Megatron::bucket_size, at)?),
        (Some(at), false) => {
            let problem = "gradients that are reduced at the end are one bucket, whatever megatron.bucket_size is";
            return Err(reader.plan(at, problem, "write megatron.overlap_grad_reduce = true, or remove bucket_size"));
        }
        (None, true) => {
            let size = mesh.bucket();
            Some(reader.assume("megatron.bucket_size", size, size))
        }
        (None, false) => None,
    };
    let dtype = if fp32 { DType::Fp32 } else { dtype };
    Ok(Gradients { dtype, fused_accumulation: fused, overlap_reduce, bucket })
}

fn optimizer(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    table: &written::Megatron,
    (overlap_reduce, virtual_stages): (bool, u32),
) -> Result<Optimizer, ScenarioError> {
    let distributed = reader.flag(&written::Megatron::distributed_optimizer, table.distributed_optimizer);
    let gather = table.overlap_param_gather.as_ref();
    if let Some(at) = gather.filter(|at| *at.get_ref() && !(distributed && overlap_reduce)) {
        let problem = "overlap_param_gather gathers, bucket by bucket, what each rank has stepped";
        let remedy = "write megatron.distributed_optimizer = true and megatron.overlap_grad_reduce = true";
        return Err(reader.plan(at, problem, remedy));
    }
    let overlap_gather = reader.flag(&written::Megatron::overlap_param_gather, gather.map(|at| *at.get_ref()));
    let mut dtype = |key: &str, at: &Option<Spanned<DType>>, known: &[DType]| {
        let Some(at) = at else { return Ok(reader.assume(key, DType::Fp32, "fp32")) };
        let dtype = *at.get_ref();
        if !known.contains(&dtype) {
            let names: Vec<String> = known.iter().map(|dtype| format!("{:?}", dtype.name())).collect();
            let problem = format!("{key} cannot be {}", dtype.name());
            return Err(reader.plan(at, problem, format!("write one of: {}", names.join(", "))));
        }
        if dtype != DType::Fp32 && !distributed {
            let problem = format!("{key} other than fp32 is the precision-aware optimizer's, which is distributed");
            return Err(reader.plan(at, problem, "write megatron.distributed_optimizer = true"));
        }
        Ok(dtype)
    };
    let moments = [DType::Fp32, DType::Fp16, DType::Bf16, DType::Fp8];
    let master = dtype("megatron.main_params_dtype", &table.main_params_dtype, &[DType::Fp32, DType::Fp16])?;
    let first_moment = dtype("megatron.exp_avg_dtype", &table.exp_avg_dtype, &moments)?;
    let second_moment = dtype("megatron.exp_avg_sq_dtype", &table.exp_avg_sq_dtype, &moments)?;
    let clip = reader.flag(&written::Optimizer::clip_grad_norm, scenario.optimizer.clip_grad_norm);
    let align_gather = match &table.align_param_gather {
        Some(at) if *at.get_ref() && !overlap_gather => {
            let problem = "align_param_gather lets pipeline ranks start gathering together, and no gather overlaps";
            return Err(reader.plan(at, problem, "write megatron.overlap_param_gather = true"));
        }
        Some(at) => *at.get_ref(),
        None if overlap_gather => {
            let default = virtual_stages > 1;
            reader.flag_or("megatron.align_param_gather", None, default)
        }
        None => false,
    };
    Ok(Optimizer {
        distributed,
        overlap_gather,
        align_gather,
        master,
        remainders: false,
        first_moment,
        second_moment,
        fused: true,
        clip,
    })
}
