//! Megatron-LM's arguments: a launch script, a list of arguments, or the `model_config.yaml` of its functional tests.
//!
//! Source: NVIDIA/Megatron-LM, `megatron/training/arguments.py` of core_v0.16.1. Only what a configuration states is written: what it
//! leaves out, windtunnel takes from the same release and lists by itself.

pub mod arguments;
mod graphs;
mod list;
mod mixture;
mod model;
mod own;
mod parallel;
mod pattern;
mod sizes;

use std::sync::LazyLock;

use serde_json::Map;
use toml::Value;

use self::list::strings;
use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::{Raw, Settings};
use super::table::Table;
use super::why::{Found, Why};
use crate::tables;

/// Reads Megatron-LM's arguments.
pub const IMPORTER: Importer = Importer {
    name: "megatron",
    reads: "Megatron-LM's launch scripts, lists of arguments and model_config.yaml",
    marks: "--num-layers, --hidden-size and --num-attention-heads, with --…-model-parallel-size or pretrain_….py, or below MODEL_ARGS or ARGS of a YAML",
    sniff: arguments::sniff,
    read,
    tables: Some(of_tables),
};

pub static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/megatron.toml")).expect("a test reads every table"));

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let (raw, branches) = arguments::read(request)?;
    understood(request, &TABLE, IMPORTER.name, raw, branches)
}

/// The scenario of a functional test's arguments and of its environment, as a table has them.
fn of_tables(
    request: &Request<'_>,
    arguments: &Map<String, serde_json::Value>,
    variables: &Map<String, serde_json::Value>,
) -> Result<Imported, ImportError> {
    understood(request, &TABLE, IMPORTER.name, arguments::of_tables(arguments, variables), vec![])
}

/// The scenario of arguments, which `table` knows; `branches` are variables that a branch of a script assigns.
pub fn understood(
    request: &Request<'_>,
    table: &Table,
    importer: &'static str,
    raw: Vec<Raw>,
    branches: Vec<String>,
) -> Result<Imported, ImportError> {
    let settings = Settings::new(request.file, table, raw, request.version);
    let mut out = Imported::of(&settings);
    if let Some(found) = settings.word(arguments::PROGRAM)? {
        const OTHERS: [&str; 9] = ["bert", "t5", "mamba", "vision", "vlm", "retro", "ict", "mimo", "hybrid"];
        if OTHERS.iter().any(|name| found.value.contains(name)) {
            let what = format!("the program {}, whose model is no decoder of attention alone,", found.value);
            return Err(settings.unsupported(arguments::PROGRAM, what, "import the arguments of pretrain_gpt.py"));
        }
    }
    if !branches.is_empty() {
        let list = branches.join(", ");
        out.note(format!("Conditions of the script are not evaluated. Its first assignment holds for {list}."));
    }
    out.put("runtime", "megatron", Why::code("arguments of Megatron-LM"));
    rented(&mut out, &settings, request, importer)?;
    model::model(&mut out, &settings)?;
    parallel::mesh(&mut out, &settings)?;
    parallel::pipeline(&mut out, &settings)?;
    batch(&mut out, &settings)?;
    precision(&mut out, &settings)?;
    kernels(&mut out, &settings)?;
    recompute(&mut out, &settings)?;
    experts(&mut out, &settings)?;
    optimizer(&mut out, &settings)?;
    for allocator in ["env.PYTORCH_CUDA_ALLOC_CONF", "env.PYTORCH_ALLOC_CONF"] {
        let found = settings.word(allocator)?.filter(|found| found.value.contains("expandable_segments:True"));
        out.put_found("memory.expandable_segments", found.map(|found| found.with(true)));
    }
    let connections = settings.count("env.CUDA_DEVICE_MAX_CONNECTIONS")?;
    out.put_found("framework.device_max_connections", connections.filter(|found| found.value <= 32));
    let name = out.get("model.name").and_then(Value::as_str).unwrap_or("a model").to_owned();
    out.put("description", format!("{}: Megatron-LM, {name}", request.file), Why::code("the file's name"));
    Ok(out.finish(&settings))
}

/// Writes the machine: as many nodes or GPUs as the launcher starts, where the command line does not say.
fn rented(
    out: &mut Imported,
    settings: &Settings<'_>,
    request: &Request<'_>,
    importer: &'static str,
) -> Result<(), ImportError> {
    let (nodes, each) = (settings.count("nnodes")?, settings.count("nproc_per_node")?);
    let mut request = request.clone();
    let machine = &request.machine;
    if machine.nodes.is_some() || machine.chips.is_some() || machine.on.is_none() {
        return machine::put(out, &request, importer, Kind::Gpus);
    }
    let one = nodes.as_ref().is_none_or(|found| found.value == 1);
    if let Some(found) = each.filter(|found| one && found.value < 8) {
        request.machine.chips = u32::try_from(found.value).ok();
        machine::put(out, &request, importer, Kind::Gpus)?;
        out.put("topology.chips", found.value, found.why);
        return Ok(());
    }
    request.machine.nodes = nodes.as_ref().and_then(|found| u32::try_from(found.value).ok());
    machine::put(out, &request, importer, Kind::Gpus)?;
    out.put_found("topology.nodes", nodes);
    Ok(())
}

/// Writes a flag that the configuration states.
fn flag(out: &mut Imported, settings: &Settings<'_>, key: &str, source: &str) -> Result<(), ImportError> {
    let found = settings.flag(source)?.filter(|found| found.stated);
    out.put_found(key, found);
    Ok(())
}

fn batch(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let sequence = settings.needed("seq_length", "add --seq-length N")?;
    let micro = settings.needed("micro_batch_size", "add --micro-batch-size N")?;
    out.put("batch.sequence", sequence.value, sequence.why);
    out.put("batch.micro", micro.value, micro.why);
    match settings.count("global_batch_size")? {
        Some(found) => out.put("batch.global", found.value, found.why),
        None => {
            let at = "no --global-batch-size: one micro-batch a step (megatron/training/arguments.py)";
            out.put("batch.accumulation", 1, Why::code(at));
        }
    }
    Ok(())
}

fn precision(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let (bf16, fp16) = (settings.flag("bf16")?, settings.flag("fp16")?);
    let accumulates = settings.flag("accumulate_allreduce_grads_in_fp32")?;
    let narrow = settings.flag("grad_reduce_in_bf16")?;
    let set = |found: Option<Found<bool>>| found.filter(|found| found.value);
    let reduces = match (set(bf16), set(fp16)) {
        (Some(found), _) => {
            out.put("precision.param", "bf16", found.why.clone());
            match set(narrow) {
                Some(narrow) => Found { value: false, why: narrow.why, stated: true },
                None => found.with(true),
            }
        }
        (None, Some(found)) => {
            out.put("precision.param", "fp16", found.why.clone());
            match set(accumulates) {
                Some(found) => found,
                None => found.with(false),
            }
        }
        (None, None) => {
            out.put("precision.param", "fp32", Why::code("neither --bf16 nor --fp16"));
            Found { value: true, why: Why::code("parameters are in fp32"), stated: false }
        }
    };
    flag(out, settings, "megatron.gradient_accumulation_fusion", "gradient_accumulation_fusion")?;
    out.put("megatron.grad_reduce_in_fp32", reduces.value, reduces.why);
    let recipe =
        settings.choice("fp8_recipe", &["delayed", "tensorwise", "blockwise", "mxfp8"].map(|name| (name, name)))?;
    if let Some(found) = settings.word("fp8")? {
        let recipe = recipe.unwrap_or_else(|| found.with("delayed"));
        out.put("megatron.fp8", recipe.value, found.why.and(&recipe.why));
        flag(out, settings, "megatron.fp8_param_gather", "fp8_param_gather")?;
    }
    Ok(())
}

fn kernels(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let ways = [("transformer_engine", "transformer_engine"), ("local", "local")];
    let implementation = settings.choice("transformer_impl", &ways)?;
    let local = implementation.as_ref().is_some_and(|found| found.value == "local");
    out.put_found("megatron.implementation", implementation);
    let backends = ["auto", "flash", "fused", "unfused", "local"].map(|name| (name, name));
    let backend = settings.choice("attention_backend", &backends)?.filter(|found| found.stated);
    let flash = settings.flag("use_flash_attn")?.filter(|found| found.value);
    match (backend, flash) {
        (Some(found), _) if matches!(found.value, "unfused" | "local") => {
            out.put("megatron.attention", "unfused", found.why);
        }
        (Some(found), _) if found.value != "auto" => {
            out.put("megatron.attention", "flash", found.why.clone());
            let kernels = if found.value == "fused" { "cudnn" } else { "flash2" };
            out.put("attention.backend", kernels, found.why);
        }
        (_, Some(found)) => out.put("megatron.attention", "flash", found.why),
        _ if local => {
            out.put("megatron.attention", "unfused", Why::code("--transformer-impl local without --use-flash-attn"))
        }
        _ => {}
    }
    for (key, source) in [("hidden_dropout", "hidden_dropout"), ("attention_dropout", "attention_dropout")] {
        if let Some(found) = settings.number(source)?.filter(|found| found.stated) {
            out.put(&format!("megatron.{key}"), found.value > 0.0, found.why);
        }
    }
    let gated = settings.is_set("swiglu")?;
    let (fused, other) =
        if gated { ("bias_swiglu_fusion", "bias_gelu_fusion") } else { ("bias_gelu_fusion", "bias_swiglu_fusion") };
    let _ = settings.flag(other)?;
    flag(out, settings, "megatron.bias_activation_fusion", fused)?;
    if let Some(found) = settings.flag("add_bias_linear")?.filter(|found| !found.value && !gated) {
        let how = "arguments.py: no kernel of bias and GELU without biases";
        out.put("megatron.bias_activation_fusion", false, found.why.so(how));
    }
    if let Some(found) = settings.flag("use_fused_weighted_squared_relu")?.filter(|found| found.value) {
        out.put_found("megatron.use_fused_weighted_squared_relu", Some(found));
    }
    flag(out, settings, "megatron.bias_dropout_fusion", "bias_dropout_fusion")?;
    flag(out, settings, "megatron.masked_softmax_fusion", "masked_softmax_fusion")?;
    flag(out, settings, "megatron.rope_fusion", "apply_rope_fusion")?;
    flag(out, settings, "megatron.deterministic_mode", "deterministic_mode")?;
    flag(out, settings, "megatron.create_attention_mask_in_dataloader", "create_attention_mask_in_dataloader")?;
    flag(out, settings, "megatron.check_for_nan", "check_for_nan_in_loss_and_grad")?;
    let fused = settings.flag("cross_entropy_loss_fusion")?.filter(|found| found.value);
    let whose = settings.word("cross_entropy_fusion_impl")?.filter(|found| found.stated);
    if fused.is_some() {
        out.put_found("megatron.cross_entropy_loss_fusion", fused);
        out.put_found("megatron.cross_entropy_fusion_impl", whose);
    }
    graphs::graphs(out, settings)
}

fn recompute(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let activations = settings.flag("recompute_activations")?.filter(|found| found.value);
    let granularity = settings.choice("recompute_granularity", &[("full", true), ("selective", false)])?;
    let granularity = granularity.or(activations.map(|found| found.with(false)));
    let method = settings.choice("recompute_method", &[("uniform", "uniform"), ("block", "block")])?;
    let layers = settings.integer("recompute_num_layers")?;
    let modules = settings.words("recompute_modules")?;
    let Some(found) = granularity else { return Ok(()) };
    if found.value {
        let method = method.ok_or_else(|| {
            settings.missing(
                "recompute_method",
                "uniform or block",
                "add --recompute-method uniform --recompute-num-layers 1",
            )
        })?;
        let layers = layers.map_or(1, |found| found.value);
        let mut value = toml::Table::new();
        value.insert(method.value.to_owned(), Value::Integer(layers));
        out.put("megatron.recompute", Value::Table(value), found.why.and(&method.why));
        return Ok(());
    }
    match modules.filter(|modules| modules.stated) {
        Some(modules) if modules.value != ["core_attn"] => {
            out.put("megatron.recompute_modules", strings(&modules.value), found.why.and(&modules.why));
        }
        _ => out.put("megatron.recompute", "core_attn", found.why.so("core_attn alone, where no modules are named")),
    }
    Ok(())
}

fn experts(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let many = settings.count("num_experts")?.is_some_and(|found| found.value > 1);
    let dispatcher = settings.word("moe_token_dispatcher_type")?.filter(|found| found.stated);
    let backend = settings.choice("moe_flex_dispatcher_backend", &["deepep", "hybridep"].map(|name| (name, name)))?;
    let deepep = settings.flag("moe_enable_deepep")?.filter(|found| found.value).map(|found| found.with("deepep"));
    let of_any = settings.count("moe_flex_dispatcher_num_sms")?;
    let of_deepep = settings.count("moe_deepep_num_sms")?;
    let of_hybridep = settings.count("moe_hybridep_num_sms")?;
    let capacity = settings.number("moe_expert_capacity_factor")?;
    let grouped = settings.flag("moe_grouped_gemm")?;
    let router = settings.word("moe_router_dtype")?.filter(|found| found.value == "fp32");
    let balance = settings.number("moe_aux_loss_coeff")?.filter(|found| found.stated);
    let flags = [
        "moe_pad_expert_input_to_capacity",
        "moe_permute_fusion",
        "moe_router_fusion",
        "overlap_moe_expert_parallel_comm",
        "moe_shared_expert_overlap",
        "moe_router_force_load_balancing",
        "delay_wgrad_compute",
    ];
    let flags = flags.map(|name| (name, settings.flag(name)));
    if !many {
        return Ok(());
    }
    if dispatcher.as_ref().is_some_and(|found| found.value == "flex") {
        let backend = deepep.or(backend);
        let of_backend =
            if backend.as_ref().is_some_and(|found| found.value == "hybridep") { of_hybridep } else { of_deepep };
        let processors = of_any.or(of_backend).filter(|found| found.stated);
        out.put_found("megatron.moe_flex_dispatcher_num_sms", processors);
        out.put_found("megatron.moe_flex_dispatcher_backend", backend);
    }
    out.put_found("megatron.moe_token_dispatcher_type", dispatcher);
    out.put_found("megatron.moe_expert_capacity_factor", capacity);
    out.put_found("megatron.moe_grouped_gemm", grouped);
    out.put_found("megatron.moe_router_fp32", router.map(|found| found.with(true)));
    out.put_found("megatron.moe_aux_loss", balance.map(|found| found.with(found.value > 0.0)));
    for (name, found) in flags {
        out.put_found(&format!("megatron.{name}"), found?.filter(|found| found.stated));
    }
    Ok(())
}

fn optimizer(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    if let Some(found) = settings.word("optimizer")?.filter(|found| found.value != "adam") {
        let remedy =
            "import with --optimizer adam: other states and another step are not simulated under Megatron-Core";
        return Err(settings.unsupported("optimizer", format!("the optimizer {:?}", found.value), remedy));
    }
    if let Some(found) = settings.number("clip_grad")? {
        out.put("optimizer.clip_grad_norm", found.value > 0.0, found.why);
    }
    for (key, source) in [
        ("distributed_optimizer", "use_distributed_optimizer"),
        ("overlap_grad_reduce", "overlap_grad_reduce"),
        ("overlap_param_gather", "overlap_param_gather"),
    ] {
        flag(out, settings, &format!("megatron.{key}"), source)?;
    }
    let aligns = settings.flag("align_param_gather")?.filter(|found| found.stated);
    if settings.is_set("overlap_param_gather")? {
        out.put_found("megatron.align_param_gather", aligns);
    }
    // What is reduced at the end is one bucket, whatever is said (`distributed_data_parallel.py:71`).
    let bucket = settings.count("ddp_bucket_size")?;
    match settings.is_set("overlap_grad_reduce")? {
        true => out.put_found("megatron.bucket_size", bucket),
        false => bucket.into_iter().for_each(|found| {
            out.note(format!("{} has no effect: without overlap_grad_reduce gradients are one bucket.", found.why));
        }),
    }
    let sharded = settings.flag("use_megatron_fsdp")?.filter(|found| found.value);
    let strategy = settings.word("data_parallel_sharding_strategy")?.filter(|found| found.stated);
    let unit = settings.count("suggested_communication_unit_size")?;
    if sharded.is_some() {
        out.put_found("megatron.use_megatron_fsdp", sharded);
        out.put_found("megatron.data_parallel_sharding_strategy", strategy);
        out.put_found("megatron.suggested_communication_unit_size", unit);
        flag(out, settings, "megatron.fsdp_double_buffer", "fsdp_double_buffer")?;
        flag(out, settings, "megatron.create_all_gather_group", "create_all_gather_group")?;
    }
    let aware = settings.is_set("use_precision_aware_optimizer")?;
    for key in ["main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"] {
        let found = settings.word(key)?.filter(|found| found.stated && aware);
        out.put_found(&format!("megatron.{key}"), found);
    }
    let remainders = settings.flag("store_param_remainders")?.filter(|found| found.stated && aware && !found.value);
    out.put_found("megatron.store_param_remainders", remainders);
    Ok(())
}
