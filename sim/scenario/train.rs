//! A job of PyTorch's own runtimes as understood: FSDP2, FSDP1, `DistributedDataParallel`, or one device.

use toml::Spanned;

use super::change::Change;
use super::entry::{Base, Decided, Entry, Rerun, Runtime};
use super::error::ScenarioError;
use super::reader::{MOST_RANKS, Reader};
use super::{
    accumulation, autocast, classes, context, ddp, documents, dpo, experts, float8, gate, machine, names, optimizer,
    recompute, sharding, stages, tensor, trained, training, written,
};
use crate::cost::{Backend, Profile, Software};
use crate::hardware::{Topology, Vendor};
use crate::model::head::Loss;
use crate::model::style::{Modules, NormCode, Style};
use crate::model::transformers::norm_code;
use crate::model::{Dropout, ModelConfig, Norm, Position};
use crate::program::{DType, Dispatch};
use crate::runtime;
use crate::runtime::eager::Offload;
use crate::runtime::eager::{LayerNorm, Settings};
use crate::runtime::fsdp::{MixedPrecision, Wrap};
use crate::runtime::train::{Checkpoint, Initialisation, KeepLogits, TorchPlan};

/// Where checkpoints around blocks are written, and which there are.
pub(super) const POLICIES: Rerun =
    Rerun { key: "activation_checkpointing.policy", values: &["none", "every=2", "selective_op", "full"], beside: &[] };

/// PyTorch `fully_shard`.
pub(super) const FSDP2: Runtime = Runtime(&Entry {
    written: names::FSDP2,
    also: &["fsdp", "fully-shard", "torchtitan"],
    name: "FSDP2",
    lane: "FSDP2 (PyTorch fully_shard, CUDA)",
    splits_model: false,
    recompute: POLICIES,
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// PyTorch `FullyShardedDataParallel`.
pub(super) const FSDP1: Runtime = Runtime(&Entry {
    written: names::FSDP1,
    also: &["fully-sharded-data-parallel", "fullyshardeddataparallel", "llm-foundry", "composer"],
    name: "FSDP1",
    lane: "FSDP1 (PyTorch FullyShardedDataParallel, CUDA)",
    splits_model: false,
    recompute: POLICIES,
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// PyTorch `DistributedDataParallel`.
pub(super) const DDP: Runtime = Runtime(&Entry {
    written: names::DDP,
    also: &["distributed-data-parallel", "distributeddataparallel", "data-parallel"],
    name: "DDP",
    lane: "DDP (PyTorch DistributedDataParallel, CUDA)",
    splits_model: false,
    recompute: POLICIES,
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// PyTorch on one device, with nothing around the model.
pub(super) const SINGLE_DEVICE: Runtime = Runtime(&Entry {
    written: names::SINGLE_DEVICE,
    also: &["single-gpu", "one-device"],
    name: "one device",
    lane: "one device (PyTorch, CUDA)",
    splits_model: false,
    recompute: POLICIES,
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// Everything that these runtimes leave to the file.
pub(super) fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    let Base { scenario, runtime, topology, profile, model, seq, micro, accumulation } = base;
    foreign(reader, scenario, runtime)?;
    let documents = documents::documents(reader, &scenario.batch, seq)?;
    let tensor = tensor::tensor(reader, scenario, runtime, topology)?;
    let (context, rotate) = context::context(reader, scenario, (runtime, topology, &model, seq), tensor.ranks)?;
    let count = |reader: &Reader<'_>, key: &str, at: &Spanned<i64>| reader.count_within(key, at, 1, MOST_RANKS);
    let pp = stages::ranks(reader, scenario, (runtime, topology))?;
    let axes = (tensor.ranks, u64::from(context), pp);
    let (shard, replicate) = match runtime == DDP {
        true => (1, ddp::replicas(reader, &scenario.mesh, topology)?),
        false => gate::mesh(reader, &scenario.mesh, (topology, axes), count)?,
    };
    let ddp = ddp::settings(reader, scenario, runtime)?;
    let pipeline = stages::stages(reader, scenario, &model, (pp, accumulation))?;
    let shard = shard * context;
    let autocast = autocast::autocast(reader, &scenario.precision, runtime)?;
    let mixed_precision = precision(reader, &scenario.precision, runtime)?;
    let node = (topology.nodes, u64::from(topology.ranks_per_node()));
    let experts = experts::implementation(reader, scenario, (runtime, &model, shard), node)?;
    let expert_parallel = experts.ranks() > 1;
    let ranks = (shard, replicate, pipeline.is_some());
    let config = sharding::fsdp(reader, scenario, runtime, (&model, expert_parallel), ranks, mixed_precision)?;
    let checkpoint = recompute::checkpoint(reader, &scenario.activation_checkpointing, model.layers.count())?;
    recompute::fits(reader, scenario, &checkpoint)?;
    let reentrant = recompute::reentrant(reader, scenario, (&checkpoint, &model, runtime))?;
    let offload = recompute::offload(reader, scenario, runtime)?;
    let early_stop = reader.flag(&written::Checkpointing::early_stop, scenario.activation_checkpointing.early_stop);
    let caller = (runtime, config.version.caller(), config.cpu_offload);
    let optimizer = optimizer::optimizer(reader, &scenario.optimizer, caller)?;
    optimizer::whole_matrices(reader, &scenario.optimizer, (&optimizer, tensor.ranks))?;
    let copied = (runtime, mixed_precision.storage, config.cpu_offload);
    let master_weights = optimizer::master_weights(reader, &scenario.optimizer, copied)?;
    let step_in_backward = training::in_backward(reader, &scenario.optimizer, (runtime, accumulation))?;
    let clip = reader.flag(&written::Optimizer::clip_grad_norm, scenario.optimizer.clip_grad_norm);
    let facts = (accumulation, replicate, pipeline.is_some());
    let between = accumulation::between(reader, scenario, runtime, facts)?;
    let regime = machine::regime(reader, &scenario.topology);
    let (attention, deterministic) =
        machine::pytorch_kernels(reader, &scenario.attention, (topology, profile), &model)?;
    let multiplied = if autocast.is_some() { DType::Bf16 } else { mixed_precision.compute() };
    // In fp32 the memory-efficient kernel runs, whichever is asked for. Nobody measured it: FlashAttention 2's times stand in.
    let attention = match attention {
        Backend::Cudnn | Backend::Flash3 if multiplied == DType::Fp32 && profile.attention.has(Backend::Flash2) => {
            Backend::Flash2
        }
        other => other,
    };
    let tf32 = match scenario.precision.tf32 {
        None => reader.assume_for("precision.tf32", false, false, "PyTorch's default"),
        Some(written) => written,
    };
    let expandable_segments = reader.flag(&written::Memory::expandable_segments, scenario.memory.expandable_segments);
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let cublas = machine::cublas(reader, &scenario.framework, profile)?;
    let preference = dpo::dpo(reader, scenario, runtime)?;
    let loss = match preference {
        Some(preference) => Loss::Preference(preference.log_probs),
        None => training::loss(reader, &scenario.loss, &scenario.compile)?,
    };
    let compile = compiles(reader, &scenario.compile, (runtime, &config.wrap))?;
    let float8 = float8::float8(reader, scenario, ((topology, profile), compile, shard))?;
    let linears = float8::linears(
        reader,
        &scenario.framework,
        ((topology, profile), compile),
        (&model, micro * seq, tensor.ranks),
    )?;
    let beside = classes::Beside { linears, float8: float8.is_some(), context: context > 1 };
    let style = Style { experts, linears, ..classes::style(reader, scenario, &model, &beside)? };
    if scenario.framework.fused_qkv.is_none() && style.modules == Modules::Plain {
        reader.assume("framework.fused_qkv", (), false);
    }
    let loss_inside = preference.is_none() && training::inside_model(reader, scenario)?;
    let eager = Settings {
        norm_code: norm_code(&model, style),
        copies_gradients: deterministic && attention == Backend::Flash2 && multiplied != DType::Fp32,
        ..eager(reader, scenario, (topology, profile), (&model, early_stop, offload))
    };
    let asks = style.modules == Modules::Transformers && checkpoint != Checkpoint::None;
    let trained = trained::trained(reader, scenario, (runtime, &model, mixed_precision), (asks, preference))?;
    let job = TorchPlan {
        batch: micro,
        seq,
        documents,
        accumulation: accumulation as u32,
        sync_every: between.sync_every,
        marks_last: between.marks_last,
        keeps_gathered: between.keeps_gathered,
        all_reduce_every: between.all_reduce_every,
        fsdp: config,
        ddp,
        tensor,
        context,
        rotate,
        pipeline,
        checkpoint,
        reentrant,
        around_hooks: scenario.activation_checkpointing.around_hooks.as_ref().is_some_and(|at| *at.get_ref()),
        checkpoint_compiled: scenario.activation_checkpointing.around_compiled.unwrap_or(false),
        compile,
        float8,
        loss,
        unpad: scenario.attention.unpad.as_ref().is_some_and(|at| *at.get_ref()),
        reference: preference.map(|preference| preference.reference),
        keep_logits: if preference.is_some() { KeepLogits::No } else { training::keep_logits(&scenario.loss) },
        loss_inside,
        training_loop: training::training_loop(reader, scenario, loss)?,
        trained,
        style,
        output: scenario.precision.output.as_ref().map(|at| *at.get_ref()),
        eager,
        optimizer,
        clip,
        master_weights,
        scale_gradients: scenario.optimizer.scale_gradients.unwrap_or(false),
        step_in_backward,
        max_positions: seq,
        initialisation: initialisation(reader, scenario, runtime)?,
        autocast,
        cuda_graphs: cuda_graphs(reader, &scenario.framework, runtime),
        // TRL and torchtune switch dropout off (`disable_dropout`).
        model: match preference {
            Some(_) => ModelConfig { dropout: Dropout::default(), ..model },
            None => model,
        },
    };
    gate::check(reader, scenario, &job, topology)?;
    let software = Software { attention, deterministic, tf32, cublas, rail, blocks: None, disks: None };
    let job = runtime::Plan::Torch(job);
    Ok(Decided { job, regime, software, expandable_segments })
}

/// Whether a micro-batch is one CUDA graph.
fn cuda_graphs(reader: &mut Reader<'_>, written: &written::Framework, runtime: Runtime) -> bool {
    let graphs = match written.cuda_graphs {
        None if runtime == FSDP2 => reader.flag(&written::Framework::cuda_graphs, None),
        written => written.unwrap_or(false),
    };
    if graphs {
        reader.note(
            "allocated memory is that of a step which replays its CUDA graph; capturing it, in the second step, takes more for a \
             while, which the reserved memory holds",
        );
    }
    graphs
}

/// What initialising parameters leaves in the allocator's cache.
fn initialisation(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
) -> Result<Initialisation, ScenarioError> {
    match &scenario.memory.initialisation {
        Some(at) if *at.get_ref() == written::Initialisation::TruncatedNormal => {
            if runtime != FSDP2 {
                let problem =
                    "memory.initialisation = \"truncated_normal\" is of parameters that fully_shard has sharded";
                return Err(reader.plan(at, problem, "remove the key, or write runtime = \"fsdp2\""));
            }
            Ok(Initialisation::TruncatedNormal)
        }
        _ => Ok(Initialisation::InPlace),
    }
}

/// Whether each block is compiled. Compiling all of what `fully_shard` has made comes to the same: its hooks are not traced, so
/// Dynamo leaves the loop over blocks to Python and compiles each block's forward.
fn compiles(
    reader: &mut Reader<'_>,
    written: &written::Compile,
    (runtime, wrap): (Runtime, &Wrap),
) -> Result<bool, ScenarioError> {
    if runtime == DDP {
        // No key of the table but the loss's is read.
        return Ok(false);
    }
    let Some(at) = written.model.as_ref().filter(|at| *at.get_ref()) else {
        return Ok(reader.flag(&written::Compile::blocks, written.blocks));
    };
    let hooked = runtime == FSDP2 && wrap.modules.is_empty() && wrap.blocks.iter().all(Option::is_some);
    if !hooked {
        let problem =
            "a model whose blocks are not each wrapped by fully_shard is compiled to one graph, which is not simulated";
        return Err(reader.plan(at, problem, "write compile.blocks = true in place of compile.model"));
    }
    if written.blocks == Some(true) {
        reader.idle("compile.model", "compile.blocks = true compiles the same blocks");
    }
    if written.blocks == Some(false) {
        let problem = "compiling the model compiles its blocks, and compile.blocks is false";
        return Err(reader.plan(at, problem, "remove one of the two keys"));
    }
    Ok(true)
}

/// Refuses tables and axes of other frameworks.
fn foreign(reader: &Reader<'_>, scenario: &written::Scenario, runtime: Runtime) -> Result<(), ScenarioError> {
    super::foreign::own_tables(reader, runtime)?;
    if runtime == DDP {
        super::foreign::check(reader, runtime)?;
    }
    let mesh = scenario.mesh.get_ref();
    let axes = [
        ("data", &mesh.data),
        ("fsdp", &mesh.fsdp),
        ("fsdp_transpose", &mesh.fsdp_transpose),
        ("context", &mesh.context),
        ("expert", &mesh.expert),
        ("tensor", &mesh.tensor),
        ("pipeline", &mesh.pipeline),
        ("dcn_pipeline", &mesh.dcn_pipeline),
        ("dcn_data", &mesh.dcn_data),
        ("dcn_fsdp", &mesh.dcn_fsdp),
        ("dcn_fsdp_transpose", &mesh.dcn_fsdp_transpose),
        ("dcn_context", &mesh.dcn_context),
        ("dcn_expert", &mesh.dcn_expert),
        ("dcn_tensor", &mesh.dcn_tensor),
    ];
    let switches = [
        ("allow_split_physical_axes", mesh.allow_split_physical_axes.as_ref().map(Spanned::span)),
        ("logical_axis_rules", mesh.logical_axis_rules.as_ref().map(Spanned::span)),
    ];
    if let Some((key, Some(at))) = switches.into_iter().find(|(_, at)| at.is_some()) {
        let problem = format!("mesh.{key} is of runtime = \"xla\"");
        return Err(reader.plan(&Spanned::new(at, ()), problem, "remove the key"));
    }
    if let Some((key, Some(at))) = axes.into_iter().find(|(_, at)| at.is_some()) {
        let problem = format!("mesh.{key} is an axis of runtime = \"xla\"");
        return Err(reader.plan(at, problem, "write mesh.dp_shard, mesh.dp_replicate or mesh.tp"));
    }
    for (key, at) in [("dp", &mesh.dp), ("etp", &mesh.etp)] {
        if let Some(at) = at {
            let others =
                if key == "dp" { " and of others that split a model, or its states, without FSDP" } else { "" };
            let problem = format!("mesh.{key} is an axis of runtime = \"megatron\"{others}");
            let remedy = match key {
                "dp" => "write mesh.dp_shard, or mesh.dp_replicate",
                _ if reader.reading([&Change::set("runtime", "megatron")]).is_empty() => "remove mesh.etp",
                _ => "remove mesh.etp, or write runtime = \"megatron\"",
            };
            return Err(reader.plan(at, problem, remedy));
        }
    }
    Ok(())
}

fn precision(
    reader: &mut Reader<'_>,
    written: &written::Precision,
    runtime: Runtime,
) -> Result<MixedPrecision, ScenarioError> {
    for (key, dtype) in [
        ("storage", &written.storage),
        ("param", &written.param),
        ("reduce", &written.reduce),
        ("output", &written.output),
    ] {
        if let Some(at) = dtype
            && matches!(at.get_ref(), DType::Int32 | DType::Int64 | DType::Fp8)
        {
            let problem = format!("precision.{key} cannot be {}", at.get_ref().name());
            return Err(reader.plan(at, problem, "write \"bf16\", \"fp16\" or \"fp32\""));
        }
    }
    let get = |at: &Option<Spanned<DType>>| at.as_ref().map(|at| *at.get_ref());
    let storage = get(&written.storage).unwrap_or_else(|| reader.assume("precision.storage", DType::Fp32, "fp32"));
    if runtime.keeps_whole() {
        if let Some(at) = written.param.as_ref().or(written.reduce.as_ref()) {
            let problem = "on one device parameters are used, and gradients kept, in the type they are stored in";
            return Err(reader.plan(
                at,
                problem,
                "remove precision.param and precision.reduce, or write runtime = \"fsdp2\"",
            ));
        }
        return Ok(MixedPrecision { storage, param: None, reduce: None });
    }
    let param = match get(&written.param) {
        None if written.autocast.is_some() => None,
        None if storage == DType::Fp32 => Some(reader.assume("precision.param", DType::Bf16, "bf16")),
        param => param,
    };
    let reduce = match get(&written.reduce) {
        None if written.autocast.is_some() => None,
        None if storage == DType::Fp32 => Some(reader.assume("precision.reduce", DType::Fp32, "fp32")),
        None => {
            let same = param.unwrap_or(storage);
            reader.assume_for("precision.reduce", (), same.name(), "as computed in");
            None
        }
        reduce => reduce,
    };
    Ok(MixedPrecision { storage, param, reduce })
}

/// How eager operators run.
pub(super) fn eager(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (topology, profile): (&Topology, &Profile),
    (model, early_stop, offload): (&ModelConfig, bool, Option<Offload>),
) -> Settings {
    let framework = &scenario.framework;
    let bias_tensor = match (model.position, scenario.attention.alibi_tensor) {
        (Position::Alibi, None) => reader.assume("attention.alibi_tensor", true, true),
        (_, written) => written.unwrap_or(true),
    };
    Settings {
        workspace: profile.overheads.cublas_workspace.0,
        persistent_workspace: reader
            .flag(&written::Framework::persistent_cublas_workspace, framework.persistent_cublas_workspace),
        fused_rms_norm: match model.norms().kind {
            Norm::Rms => reader.flag(&written::Framework::fused_rms_norm, framework.fused_rms_norm),
            Norm::Layer { .. } => framework.fused_rms_norm.unwrap_or(true),
        },
        norm_code: NormCode::Torch,
        layer_norm: LayerNorm::Torch,
        bias_tensor,
        sms: topology.chip.cores,
        early_stop,
        copies_gradients: false,
        attention_reads_back: scenario.attention.reads_back.unwrap_or(false),
        flex_attention: scenario.attention.backend.as_ref().is_some_and(|at| *at.get_ref() == Backend::Flex),
        unnamed_logits: scenario.loss.unnamed_logits.as_ref().is_some_and(|at| *at.get_ref()),
        offload,
        forward: Dispatch::EagerForward,
        backward: Dispatch::EagerBackward,
    }
}
