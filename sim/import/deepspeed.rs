//! DeepSpeed's `ds_config.json` with the Hugging Face model that it trains.
//!
//! Source: deepspeed 0.19, `deepspeed/runtime/{config,zero/config}.py`; values of `auto` as transformers' Trainer fills them in
//! (`src/transformers/integrations/deepspeed.py`).

use std::sync::LazyLock;

use toml::Value;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::{Raw, Settings};
use super::syntax::{json, json_value, overrides};
use super::table::Table;
use super::why::{Found, Why};
use super::{hf, plugin, whose};
use crate::tables;

/// Reads DeepSpeed's configurations.
pub const IMPORTER: Importer = Importer {
    name: "deepspeed",
    reads: "ds_config.json, with --model config.json",
    marks: "a JSON with a batch size of DeepSpeed's, or zero_optimization with bf16 or fp16",
    sniff,
    read,
    tables: None,
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/deepspeed.toml")).expect("a test reads every table"));

fn sniff(text: &str) -> bool {
    let Some(value) = json_value(text) else { return false };
    let has = |key: &&str| value.get(key).is_some();
    let batch = ["train_batch_size", "train_micro_batch_size_per_gpu"];
    batch.iter().any(has)
        || has(&"zero_optimization") && ["bf16", "fp16", "gradient_accumulation_steps"].iter().any(has)
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = json::read(request.file, request.text)?;
    raw.extend(overrides::read(request.overrides));
    // The Trainer fills in what says auto.
    let auto: Vec<String> = raw.iter().filter(|raw| raw.value == "auto").map(|raw| raw.key.clone()).collect();
    let raw: Vec<Raw> = raw.into_iter().filter(|raw| raw.value != "auto").collect();
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    out.put("runtime", "deepspeed-zero", Why::code("a configuration of DeepSpeed"));
    machine::put(&mut out, request, IMPORTER.name, Kind::Gpus)?;
    let model = whose::put(&mut out, request, None, "model")?;
    out.put("description", format!("{}, DeepSpeed", model.name), Why::code("--model"));
    plugin::classes(&mut out, &model, "deepspeed-zero");
    batch(&mut out, &settings, &auto, machine::ranks(request))?;
    match settings.count("sequence_length")? {
        Some(found) => out.put("batch.sequence", found.value, found.why),
        None => hf::put_sequence(&mut out, &model, "the configuration does not say; add sequence_length=N"),
    }
    zero(&mut out, &settings)?;
    filled_in(&mut out, &auto, i64::try_from(model.width).unwrap_or(i64::MAX));
    others(&mut out, &settings, &auto)?;
    Ok(out.finish(&settings))
}

/// What the Trainer takes where neither it nor the configuration is told.
const TRAINER: i64 = 8;

fn batch(out: &mut Imported, settings: &Settings<'_>, auto: &[String], ranks: Option<i64>) -> Result<(), ImportError> {
    let key = "train_micro_batch_size_per_gpu";
    let micro = settings.count(key)?;
    let parts = settings.count("gradient_accumulation_steps")?;
    let all = settings.count("train_batch_size")?;
    match (&micro, &all, ranks) {
        (Some(found), ..) => out.put("batch.micro", found.value, found.why.clone()),
        (None, Some(all), Some(ranks)) => {
            let steps = parts.as_ref().map_or(1, |found| found.value);
            let shares = ranks.saturating_mul(steps);
            if all.value % shares != 0 {
                let expected = format!("a multiple of {ranks} ranks × {steps} steps of accumulation");
                return Err(settings.wrong("train_batch_size", &expected, "such a multiple, or another machine"));
            }
            let how = format!("over {ranks} ranks and {steps} steps of accumulation (deepspeed/runtime/config.py)");
            out.put("batch.micro", all.value / shares, all.why.clone().so(&how));
        }
        (None, ..) if auto.iter().any(|auto| auto == key) => {
            let why = "auto: the Trainer's own default; add train_micro_batch_size_per_gpu=N to set it";
            out.put("batch.micro", TRAINER, Why::code(why));
        }
        (None, ..) => {
            let remedy = "add train_micro_batch_size_per_gpu=N";
            return Err(settings.missing(key, "a whole number, 1 or more", remedy));
        }
    }
    match (parts, all) {
        (Some(found), _) => out.put("batch.accumulation", found.value, found.why),
        (None, Some(found)) => out.put("batch.global", found.value, found.why),
        (None, None) => out.put("batch.accumulation", 1, Why::code("gradient_accumulation_steps is not set: 1")),
    }
    let tensor = settings.integer("tensor_parallel.autotp_size")?.filter(|found| found.value > 1);
    if let Some(found) = tensor {
        let what = format!("DeepSpeed's automatic tensor parallelism over {} ranks", found.value);
        return Err(settings.unsupported("tensor_parallel.autotp_size", what, "remove tensor_parallel"));
    }
    out.put_found("mesh.cp", settings.count("sequence_parallel_size")?.filter(|found| found.value > 1));
    if out.get("mesh.cp").is_none() {
        out.put("mesh.cp", 1, Why::code("no sequence_parallel_size"));
    }
    Ok(())
}

/// How a setting of ZeRO is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Number,
    Flag,
    Word,
    Share,
}

const ZERO: [(&str, As); 30] = [
    ("reduce_bucket_size", As::Number),
    ("allgather_bucket_size", As::Number),
    ("overlap_comm", As::Flag),
    ("contiguous_gradients", As::Flag),
    ("reduce_scatter", As::Flag),
    ("round_robin_gradients", As::Flag),
    ("stage3_prefetch_bucket_size", As::Number),
    ("stage3_param_persistence_threshold", As::Number),
    ("stage3_max_live_parameters", As::Number),
    ("stage3_max_reuse_distance", As::Number),
    ("sub_group_size", As::Number),
    ("zero_hpz_partition_size", As::Number),
    ("zero_quantized_weights", As::Flag),
    ("zero_quantized_nontrainable_weights", As::Flag),
    ("zero_quantized_gradients", As::Flag),
    ("offload_optimizer.device", As::Word),
    ("offload_optimizer.pin_memory", As::Flag),
    ("offload_optimizer.nvme_path", As::Word),
    ("offload_optimizer.buffer_count", As::Number),
    ("offload_optimizer.pipeline_read", As::Flag),
    ("offload_optimizer.pipeline_write", As::Flag),
    ("offload_optimizer.fast_init", As::Flag),
    ("offload_optimizer.ratio", As::Share),
    ("offload_param.device", As::Word),
    ("offload_param.pin_memory", As::Flag),
    ("offload_param.nvme_path", As::Word),
    ("offload_param.buffer_count", As::Number),
    ("offload_param.buffer_size", As::Number),
    ("offload_param.max_in_cpu", As::Number),
    ("aio.block_size", As::Number),
];

/// Settings that mean something in stage 3 alone.
const THIRD: [&str; 4] = ["stage3_", "sub_group_size", "offload_param", "zero_"];

fn zero(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let stage = settings.integer("zero_optimization.stage")?;
    let stage = stage.ok_or_else(|| settings.missing("zero_optimization.stage", "1, 2 or 3", "set it"))?;
    if !(1..=3).contains(&stage.value) {
        let what = format!("ZeRO stage {} (replicas of everything)", stage.value);
        return Err(settings.unsupported("zero_optimization.stage", what, "set zero_optimization.stage to 1, 2 or 3"));
    }
    let third = stage.value == 3;
    out.put("zero.stage", stage.value, stage.why);
    for (name, how) in ZERO {
        let source = match name.strip_prefix("aio.") {
            Some(_) => name.to_owned(),
            None => format!("zero_optimization.{name}"),
        };
        let stated = settings.states(&source);
        let found = match how {
            As::Number => settings.integer(&source)?.map(|found| found.with(Value::Integer(found.value))),
            As::Flag => settings.flag(&source)?.map(|found| found.with(Value::Boolean(found.value))),
            As::Word => settings.word(&source)?.map(|found| found.with(Value::String(found.value.clone()))),
            As::Share => settings.number(&source)?.map(|found| found.with(Value::Float(found.value))),
        };
        let idle = !third && THIRD.iter().any(|start| name.starts_with(start));
        let away = name.split_once('.').and_then(|(table, _)| out.get(&format!("zero.{table}.device")));
        let home = name.contains('.')
            && !name.ends_with("device")
            && away.is_none_or(|device| device.as_str() == Some("none"));
        if let Some(mut found) = found.filter(|_| stated && !idle && !home) {
            if name == "sub_group_size" && found.value.as_integer() == Some(0) {
                found = Found { value: Value::Integer(1), why: found.why.so("0: a group for each parameter"), stated };
            }
            out.put(&format!("zero.{name}"), found.value, found.why);
        }
    }
    Ok(())
}

/// What the Trainer writes where the configuration says `auto`.
fn filled_in(out: &mut Imported, auto: &[String], width: i64) {
    let square = width.saturating_mul(width);
    let values = [
        ("reduce_bucket_size", square, "hidden · hidden"),
        ("stage3_prefetch_bucket_size", square.saturating_mul(9) / 10, "0.9 · hidden · hidden"),
        ("stage3_param_persistence_threshold", width.saturating_mul(10), "10 · hidden"),
    ];
    let third = out.degree("zero.stage") == 3;
    for (name, value, how) in values {
        let source = format!("zero_optimization.{name}");
        if auto.contains(&source) && (third || name == "reduce_bucket_size") {
            let why = format!("{source} is auto: transformers' integrations/deepspeed.py, {how}");
            out.put(&format!("zero.{name}"), value, Why::code(why));
        }
    }
}

/// Parameters in fp16, which are as wide as bf16.
fn half(out: &mut Imported, why: Why) {
    let changes = "fp16 has no rules here, and is predicted as bf16, which is as wide: checks for overflow and skipped steps are left out";
    out.without("fp16.enabled", "true", &why.to_string(), changes);
    out.put("precision.param", "bf16", why.so("taken as bf16, see below"));
}

fn others(out: &mut Imported, settings: &Settings<'_>, auto: &[String]) -> Result<(), ImportError> {
    let (bf16, fp16) = (settings.flag("bf16.enabled")?, settings.flag("fp16.enabled")?);
    let fp16 = fp16.filter(|found| found.value);
    match (bf16.filter(|found| found.value), fp16) {
        (Some(found), _) => out.put("precision.param", "bf16", found.why),
        (None, Some(found)) => half(out, found.why),
        (None, None) if auto.iter().any(|key| key == "bf16.enabled") => {
            out.put("precision.param", "bf16", Why::code("bf16.enabled is auto: assumed"));
        }
        (None, None) if auto.iter().any(|key| key == "fp16.enabled") => {
            half(out, Why::code("fp16.enabled is auto: assumed"));
        }
        (None, None) => out.put("precision.param", "fp32", Why::code("neither bf16 nor fp16 is enabled")),
    }
    match settings.number("gradient_clipping")? {
        Some(found) if found.stated => out.put("optimizer.clip_grad_norm", found.value > 0.0, found.why),
        Some(found) if auto.iter().any(|key| key == "gradient_clipping") => {
            let why = found.why.so("gradient_clipping is auto: the Trainer's max_grad_norm is 1.0");
            out.put("optimizer.clip_grad_norm", true, why);
        }
        Some(found) => out.put("optimizer.clip_grad_norm", found.value > 0.0, found.why),
        None => {}
    }
    if let Some(found) = settings.word("optimizer.type")? {
        let names = [("adamw", "adamw"), ("adam", "adam")];
        let name = found.value.to_lowercase();
        let known = names.iter().find(|(known, _)| *known == name);
        let what = format!("the optimizer {:?}", found.value);
        let (_, name) = known.ok_or_else(|| settings.unsupported("optimizer.type", what, "set it to AdamW"))?;
        out.put("optimizer.name", *name, found.why);
    }
    out.note("Recomputation is the model's own and not DeepSpeed's: none is assumed. Set activation_checkpointing.policy in the scenario.");
    Ok(())
}
