//! accelerate's YAML configurations: FSDP and DeepSpeed sections. They name no model and no batch: `--model` and words do.
//!
//! Source: accelerate 1.15.0, `src/accelerate/commands/{launch,config/config_args}.py`, `parallelism_config.py`.

use std::sync::LazyLock;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::Settings;
use super::syntax::{overrides, yaml};
use super::table::Table;
use super::why::Why;
use super::{hf, plugin, whose};
use crate::model::ModelConfig;
use crate::tables;

/// Reads accelerate's configurations.
pub const IMPORTER: Importer = Importer {
    name: "accelerate",
    reads: "YAML configurations, with --model config.json",
    marks: "a YAML with distributed_type",
    sniff,
    read,
    tables: None,
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/accelerate.toml")).expect("a test reads every table"));

fn sniff(text: &str) -> bool {
    let begins = |name: &str| text.lines().any(|line| line.starts_with(name));
    begins("distributed_type:") && !begins("base_model:")
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = yaml::read(request.file, request.text)?;
    raw.extend(overrides::read(request.overrides));
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    let mut request = request.clone();
    let processes = settings.count("num_processes")?;
    let machines = settings.count("num_machines")?;
    let given = request.machine.nodes.is_some() || request.machine.chips.is_some();
    if let (Some(found), Some(_), false) = (&processes, &request.machine.on, given) {
        request.machine.chips =
            u32::try_from(found.value).ok().filter(|_| machines.is_none_or(|found| found.value == 1));
    }
    machine::put(&mut out, &request, IMPORTER.name, Kind::Gpus)?;
    if let (Some(found), Some(ranks)) = (processes.filter(|found| found.stated), machine::ranks(&request))
        && found.value != ranks
    {
        out.note(format!(
            "The configuration is for {} processes ({}), and the machine has {ranks} GPUs.",
            found.value, found.why
        ));
    }
    let model = whose::put(&mut out, &request, None, "model")?;
    out.put("description", format!("{}, accelerate", model.name), Why::code("--model"));
    match settings.word("distributed_type")?.map(|found| found.value.to_uppercase()).as_deref() {
        Some("FSDP") => fsdp(&mut out, &settings, &model)?,
        Some("DEEPSPEED") => zero(&mut out, &settings, &model)?,
        Some("MULTI_GPU" | "NO") => {
            let what = "replicas of the whole model (DDP)";
            return Err(settings.unsupported("distributed_type", what, "set distributed_type to FSDP"));
        }
        _ => return Err(settings.wrong("distributed_type", "FSDP or DEEPSPEED", "FSDP")),
    }
    batch(&mut out, &settings, &model)?;
    let backend =
        settings.word("dynamo_config.dynamo_backend")?.filter(|found| !found.value.eq_ignore_ascii_case("no"));
    if let Some(found) = backend {
        let changes = "the model is compiled: the time of pointwise work, and memory of what backward keeps";
        out.without("dynamo_backend", &found.value, &found.why.to_string(), changes);
    }
    Ok(out.finish(&settings))
}

fn batch(out: &mut Imported, settings: &Settings<'_>, model: &ModelConfig) -> Result<(), ImportError> {
    match settings.count("sequence_length")? {
        Some(found) => out.put("batch.sequence", found.value, found.why),
        None => hf::put_sequence(out, model, "the configuration does not say; add sequence_length=N"),
    }
    let assumed = |key: &str| Why::code(format!("assumed: the script's own; add {key}=N to set it"));
    match settings.count("per_device_train_batch_size")? {
        Some(found) => out.put("batch.micro", found.value, found.why),
        None => out.put("batch.micro", 1, assumed("per_device_train_batch_size")),
    }
    if out.get("batch.accumulation").is_none() {
        match settings.count("gradient_accumulation_steps")? {
            Some(found) => out.put("batch.accumulation", found.value, found.why),
            None => out.put("batch.accumulation", 1, assumed("gradient_accumulation_steps")),
        }
    }
    Ok(())
}

fn fsdp(out: &mut Imported, settings: &Settings<'_>, model: &ModelConfig) -> Result<(), ImportError> {
    let version = settings.integer("fsdp_config.version")?;
    plugin::put(out, settings, model, version)?;
    plugin::precision(out, settings, "mixed_precision")?;
    out.put("mesh.tp", 1, Why::code("no parallelism_config"));
    let axes = [
        ("mesh.dp_replicate", "parallelism_config.dp_replicate_size"),
        ("mesh.dp_shard", "parallelism_config.dp_shard_size"),
        ("mesh.tp", "parallelism_config.tp_size"),
        ("mesh.cp", "parallelism_config.cp_size"),
    ];
    for (key, source) in axes {
        let found = settings.count(source)?.filter(|found| found.stated);
        out.put_found(key, found.filter(|found| found.value > 1 || key == "mesh.tp" || key == "mesh.dp_shard"));
    }
    // Replicas alone are not sharded at all.
    if out.degree("mesh.dp_replicate") > 1 && out.degree("mesh.dp_shard") == 1 && out.get("mesh.dp_shard").is_some() {
        let what = "replicas of unsharded parameters (DDP)";
        return Err(settings.unsupported("parallelism_config.dp_shard_size", what, "set dp_shard_size to 2 or more"));
    }
    if settings.count("parallelism_config.sp_size")?.is_some_and(|found| found.value > 1) {
        let what = "sequence parallelism by DeepSpeed under FSDP (sp_size)";
        return Err(settings.unsupported("parallelism_config.sp_size", what, "set cp_size instead"));
    }
    let rotate = settings.word("parallelism_config.cp_comm_strategy")?;
    if out.degree("mesh.cp") > 1 {
        out.put_found("framework.context_parallel_rotate_method", rotate);
    }
    if out.degree("mesh.tp") > 1 {
        let why = Why::code("transformers' tensor parallelism keeps whole sequences between modules");
        out.put("tensor_parallel.sequence", false, why);
        out.put("tensor_parallel.loss", false, Why::code("transformers' head gathers its logits"));
    }
    Ok(())
}

fn zero(out: &mut Imported, settings: &Settings<'_>, model: &ModelConfig) -> Result<(), ImportError> {
    out.put("runtime", "deepspeed-zero", Why::code("distributed_type: DEEPSPEED"));
    let at = |name: &str| format!("deepspeed_config.{name}");
    if settings.states(&at("deepspeed_config_file")) {
        let what = "a configuration that names a file of DeepSpeed, which is not read along,";
        let remedy = "import that file: windtunnel import deepspeed ds_config.json --model config.json";
        return Err(settings.unsupported(&at("deepspeed_config_file"), what, remedy));
    }
    plugin::classes(out, model, "deepspeed-zero");
    let stage = settings.integer(&at("zero_stage"))?;
    let stage = stage.ok_or_else(|| settings.missing(&at("zero_stage"), "1, 2 or 3", "set it"))?;
    if !(1..=3).contains(&stage.value) {
        let what = format!("ZeRO stage {} (replicas of everything)", stage.value);
        return Err(settings.unsupported(&at("zero_stage"), what, "set it to 1, 2 or 3"));
    }
    let third = stage.value == 3;
    out.put("zero.stage", stage.value, stage.why);
    for (key, source, read) in [
        ("zero.offload_optimizer.device", "offload_optimizer_device", true),
        ("zero.offload_param.device", "offload_param_device", third),
    ] {
        let found = settings.word(&at(source))?;
        out.put_found(key, found.filter(|found| read && found.value != "none"));
    }
    if let Some(found) = settings.count(&at("gradient_accumulation_steps"))? {
        out.put("batch.accumulation", found.value, found.why);
    }
    if let Some(found) = settings.number(&at("gradient_clipping"))? {
        out.put("optimizer.clip_grad_norm", found.value > 0.0, found.why);
    }
    match settings.word("mixed_precision")? {
        Some(found) if found.value == "bf16" => out.put("precision.param", "bf16", found.why),
        Some(found) if found.value == "fp16" => {
            let changes =
                "fp16 has no rules here, and is predicted as bf16, which is as wide: checks for overflow are left out";
            out.without("mixed_precision", "fp16", &found.why.to_string(), changes);
            out.put("precision.param", "bf16", found.why.so("taken as bf16, see below"));
        }
        _ => out.put("precision.param", "fp32", Why::code("no mixed_precision")),
    }
    out.put("mesh.cp", 1, Why::code("no sequence parallelism"));
    out.note("Recomputation is the model's own: none is assumed. Set activation_checkpointing.policy in the scenario.");
    Ok(())
}
