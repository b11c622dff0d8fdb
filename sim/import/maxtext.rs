//! MaxText's YAML configurations, with `key=value` on the command line, and scripts that start its training.
//!
//! Source: AI-Hypercomputer/maxtext, `src/maxtext/configs/base.yml`, `configs/types.py`, `utils/max_utils.py`.

mod gpu;
mod models;

use std::sync::LazyLock;

use toml::Value;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::{Raw, Settings};
use super::syntax::{overrides, shell, yaml};
use super::table::Table;
use super::why::{Found, Why};
use crate::plan::xla::TENSORS;
use crate::tables;

/// Reads MaxText's configurations.
pub const IMPORTER: Importer =
    Importer { name: "maxtext", reads: "YAML configurations and launch scripts, for TPUs and GPUs", sniff, read };

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/maxtext.toml")).expect("a test reads every table"));

/// Axes within a slice, and between slices.
const AXES: [(&str, &str); 14] = [
    ("mesh.data", "ici_data_parallelism"),
    ("mesh.fsdp", "ici_fsdp_parallelism"),
    ("mesh.fsdp_transpose", "ici_fsdp_transpose_parallelism"),
    ("mesh.context", "ici_context_parallelism"),
    ("mesh.expert", "ici_expert_parallelism"),
    ("mesh.tensor", "ici_tensor_parallelism"),
    ("mesh.pipeline", "ici_pipeline_parallelism"),
    ("mesh.dcn_data", "dcn_data_parallelism"),
    ("mesh.dcn_pipeline", "dcn_pipeline_parallelism"),
    ("mesh.dcn_fsdp", "dcn_fsdp_parallelism"),
    ("mesh.dcn_fsdp_transpose", "dcn_fsdp_transpose_parallelism"),
    ("mesh.dcn_context", "dcn_context_parallelism"),
    ("mesh.dcn_expert", "dcn_expert_parallelism"),
    ("mesh.dcn_tensor", "dcn_tensor_parallelism"),
];

/// The configuration that a script's command names.
const CONFIG: &str = "base_config";

fn sniff(text: &str) -> bool {
    text.contains("per_device_batch_size") && text.contains("max_target_length")
        || text.contains("base_config:") && text.contains("base.yml")
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = if request.text.starts_with("#!") || request.text.lines().any(starts_training) {
        of_script(request)?
    } else {
        yaml::read(request.file, request.text)?
    };
    raw.extend(overrides::read(request.overrides));
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    let on_gpus = on_gpus(&settings)?;
    out.put("runtime", "xla", Why::code("MaxText is compiled whole by XLA"));
    machine::put(&mut out, request, IMPORTER.name, if on_gpus { Kind::Gpus } else { Kind::Slices })?;
    model(&mut out, &settings)?;
    match on_gpus {
        true => gpu::mesh(&mut out, &settings, request)?,
        false => mesh(&mut out, &settings, request)?,
    }
    batch(&mut out, &settings)?;
    compiled(&mut out, &settings, on_gpus)?;
    if on_gpus {
        gpu::flags(&mut out, request);
    } else {
        out.note("Flags of the compiler (LIBTPU_INIT_ARGS) are not read: write xla.flags by the names of MaxText's benchmarks/xla_flags_library.py.");
    }
    pipeline(&mut out, &settings)?;
    Ok(out.finish(&settings))
}

/// Whether it is compiled for GPUs: by `hardware`, or by the folder of the configuration that a script names.
fn on_gpus(settings: &Settings<'_>) -> Result<bool, ImportError> {
    let hardware = settings.word("hardware")?.filter(|found| found.stated);
    let config = settings.word(CONFIG)?;
    Ok(match (hardware, config) {
        (Some(hardware), _) => hardware.value.starts_with("gpu"),
        (None, Some(config)) => config.value.contains("gpu/"),
        (None, None) => false,
    })
}

/// Scales of base.yml's own model that are shipped here.
const SCALES: [i64; 6] = [32, 64, 128, 256, 512, 1024];

fn model(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let name = settings.word("model_name")?.filter(|found| found.value != "default");
    let scale = settings.count("global_parameter_scale")?;
    let Some(name) = name else {
        let remedy = "add model_name=llama3.1-8b: sizes of base.yml are of no named model";
        let missing = || settings.missing("model_name", "the name of a model", remedy);
        let scale = scale.filter(|found| SCALES.contains(&found.value)).ok_or_else(missing)?;
        let why = scale.why.clone().so("base.yml's model at that scale");
        out.put("model.name", format!("maxtext-llama-{}b", scale.value), why);
        out.put("description", format!("base.yml at scale {}, MaxText", scale.value), scale.why);
        return Ok(());
    };
    if let Some(found) = scale.filter(|found| found.value > 1) {
        let changes = "another size than the named model's: memory and time";
        out.without("global_parameter_scale", &found.value.to_string(), &found.why.to_string(), changes);
    }
    if !models::put(out, &name) {
        let remedy = format!("set it to one of {}", models::known().join(", "));
        return Err(settings.unsupported("model_name", format!("MaxText's model {:?}", name.value), &remedy));
    }
    out.put("description", format!("{}, MaxText", name.value), name.why);
    Ok(())
}

/// Whether a line of a script starts a training.
fn starts_training(line: &str) -> bool {
    line.contains("base.yml") && !line.contains("base_config")
}

/// `key=value` words of the command that names `base.yml` or another configuration.
fn of_script(request: &Request<'_>) -> Result<Vec<Raw>, ImportError> {
    let script = shell::read(request.file, request.text)?;
    let is_config = |word: &&shell::Word| word.text.ends_with(".yml");
    let command = script.commands.iter().find(|words| words.iter().any(|word| is_config(&word)));
    let words = command.map(Vec::as_slice).unwrap_or_default();
    let pairs = words.iter().filter_map(|word| Some((word, word.text.split_once('=')?)));
    let read = pairs.filter(|(word, (key, _))| !word.open && !key.starts_with('-') && !key.is_empty());
    let mut raw: Vec<Raw> = read
        .map(|(word, (key, value))| {
            let value = overrides::scalar(value);
            Raw { key: key.to_owned(), value, line: Some(word.line) }
        })
        .collect();
    let config = words.iter().find(is_config).map(|word| (word.text.clone(), word.line));
    raw.extend(config.map(|(text, line)| Raw {
        key: CONFIG.to_owned(),
        value: serde_json::Value::from(text),
        line: Some(line),
    }));
    Ok(raw)
}

/// Chips of a slice: the product of its sides.
fn chips(slice: &str) -> Option<i64> {
    slice.split('x').map(|side| side.parse::<i64>().ok()).try_fold(1i64, |all, side| all.checked_mul(side?))
}

fn mesh(out: &mut Imported, settings: &Settings<'_>, request: &Request<'_>) -> Result<(), ImportError> {
    let slice = request.machine.slice.as_deref().and_then(chips).unwrap_or(1);
    let slices = i64::from(request.machine.slices.unwrap_or(1));
    let mut rest: Option<(&str, Found<i64>)> = None;
    let mut rest_between: Option<(&str, Found<i64>)> = None;
    let (mut within, mut between) = (1i64, 1i64);
    for (key, source) in AXES {
        let Some(found) = settings.integer(source)? else { continue };
        let is_between = source.starts_with("dcn");
        if found.value == -1 {
            let slot = if is_between { &mut rest_between } else { &mut rest };
            if slot.replace((key, found)).is_some() {
                return Err(settings.wrong(source, "a whole number of 1 or more, where another axis is -1", "1"));
            }
            continue;
        }
        if found.value < 1 {
            return Err(settings.wrong(source, "-1, or a whole number of 1 or more", "1"));
        }
        let all = if is_between { &mut between } else { &mut within };
        *all = all.saturating_mul(found.value);
        if found.value > 1 {
            out.put(key, found.value, found.why);
        }
    }
    if let Some((key, found)) = rest {
        let left = slice / within.max(1);
        out.put(key, left.max(1), found.why.so(&format!("the chips of a slice of {slice} that are left")));
    }
    if let Some((key, found)) = rest_between.filter(|_| slices > between) {
        out.put(key, slices / between.max(1), found.why.so(&format!("the slices of {slices} that are left")));
    }
    let split = settings.flag("allow_split_physical_axes")?.filter(|found| found.value);
    out.put_found("mesh.allow_split_physical_axes", split);
    if let Some(found) = settings.value("logical_axis_rules").filter(|found| found.stated) {
        let rules = rules(&found.value).ok_or_else(|| {
            let expected = "rows of a logical axis and the mesh axes that it lies on";
            settings.wrong("logical_axis_rules", expected, "[[\"embed\", [\"fsdp\"]]]")
        })?;
        out.put("mesh.logical_axis_rules", rules, found.why);
    }
    Ok(())
}

/// Rules as a scenario has them; none if they are of another shape.
fn rules(value: &serde_json::Value) -> Option<Value> {
    let names = |axes: &serde_json::Value| match axes {
        serde_json::Value::Array(all) => all.iter().map(|axis| Some(Value::from(axis.as_str()?))).collect(),
        one => Some(vec![Value::from(one.as_str()?)]),
    };
    let row = |row: &serde_json::Value| match row.as_array()?.as_slice() {
        [name, axes] => Some(Value::Array(vec![Value::from(name.as_str()?), Value::Array(names(axes)?)])),
        _ => None,
    };
    Some(Value::Array(value.as_array()?.iter().map(row).collect::<Option<_>>()?))
}

fn batch(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let sequence = settings.needed("max_target_length", "add max_target_length=N")?;
    out.put("batch.sequence", sequence.value, sequence.why);
    let key = "per_device_batch_size";
    let each = settings.number(key)?.ok_or_else(|| settings.missing(key, "a number", "add per_device_batch_size=N"))?;
    // Chips that split the model share their batches.
    let shared: i64 = ["mesh.tensor", "mesh.context", "mesh.dcn_tensor", "mesh.dcn_context"]
        .map(|key| out.degree(key))
        .iter()
        .product();
    let micro = each.value * shared as f64;
    if micro.fract() != 0.0 || !(1.0..=65536.0).contains(&micro) {
        return Err(settings.wrong(key, "a number that makes whole sequences of the chips that share them", "1"));
    }
    let why = if shared > 1 { each.why.so(&format!("{shared} chips share their sequences")) } else { each.why };
    out.put("batch.micro", micro as i64, why);
    let parts = settings.count("gradient_accumulation_steps")?;
    out.put_found("batch.accumulation", parts.filter(|found| found.value > 1));
    Ok(())
}

fn compiled(out: &mut Imported, settings: &Settings<'_>, on_gpus: bool) -> Result<(), ImportError> {
    let policy = settings.word("remat_policy")?;
    let custom = policy.as_ref().is_some_and(|found| found.value == "custom");
    out.put_found("xla.remat_policy", policy);
    for name in TENSORS {
        let found = settings.word(name)?;
        if custom {
            out.put_found(&format!("xla.{name}"), found);
        }
    }
    out.put_found("xla.scan_layers", settings.flag("scan_layers")?);
    let ways = ["autoselected", "flash", "dot_product", "cudnn_flash_te", "cudnn_flash_jax", "paged", "vllm_rpa"];
    if let Some(found) = settings.choice("attention", &ways.map(|name| (name, name)))? {
        match found.value {
            "dot_product" => out.put("xla.attention", "dot_product", found.why),
            cudnn @ ("cudnn_flash_te" | "cudnn_flash_jax") if on_gpus => out.put("xla.attention", cudnn, found.why),
            other if on_gpus => {
                let what = format!("attention by {other} on GPUs, which is a Pallas kernel,");
                return Err(settings.unsupported("attention", what, "add attention=cudnn_flash_te"));
            }
            "flash" | "autoselected" => out.put("xla.attention", "flash", found.why),
            other => {
                let what = format!("attention by {other} on a TPU");
                return Err(settings.unsupported("attention", what, "add attention=flash"));
            }
        }
    }
    let flash = out.get("xla.attention").and_then(Value::as_str) == Some("flash");
    let blocks = [settings.count("sa_block_q")?, settings.count("sa_block_kv")?];
    let fused = settings.flag("sa_use_fused_bwd_kernel")?;
    let tokamax = settings.flag("use_tokamax_splash")?;
    if flash {
        if let Some(found) = blocks.into_iter().flatten().min_by_key(|found| found.value) {
            out.put("xla.sa_block_size", found.value, found.why.so("the smaller of sa_block_q and sa_block_kv"));
        }
        out.put_found("xla.sa_use_fused_bwd_kernel", fused);
        out.put_found("xla.use_tokamax_splash", tokamax);
    }
    out.put_found("xla.use_iota_embed", settings.flag("use_iota_embed")?);
    out.put_found("xla.num_vocab_tiling", settings.count("num_vocab_tiling")?.filter(|found| found.value > 1));
    if let Some(found) = settings.word("quantization")?.filter(|found| !found.value.is_empty()) {
        match found.value.as_str() {
            "int8" | "fp8_full" => out.put("xla.quantization", found.value, found.why),
            other => {
                let what = format!("quantization = {other:?}");
                return Err(settings.unsupported("quantization", what, "set it to int8, fp8_full or nothing"));
            }
        }
    }
    if let Some(found) = settings.number("gradient_clipping_threshold")? {
        out.put("xla.gradient_clipping", found.value > 0.0, found.why);
    }
    let types = [("float32", "float32"), ("bfloat16", "bfloat16")];
    out.put_found("xla.mu_dtype", settings.choice("mu_dtype", &types)?);
    out.put_found("xla.weight_dtype", settings.choice("weight_dtype", &types)?);
    let optimizer = settings.choice("opt_type", &[("adamw", "adamw"), ("sgd", "sgd")])?;
    out.put_found("optimizer.name", optimizer.filter(|found| found.stated));
    let fp32 = settings.flag("float32_qk_product")?.filter(|found| found.value);
    if out.get("xla.attention").and_then(Value::as_str) == Some("dot_product") {
        out.put_found("xla.float32_qk_product", fp32);
    }
    let capacity = settings.number("capacity_factor")?.filter(|found| found.value > 0.0);
    out.put_found("xla.capacity_factor", capacity);
    Ok(())
}

fn pipeline(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let piped = out.degree("mesh.pipeline") * out.degree("mesh.dcn_pipeline") > 1;
    for name in [
        "num_layers_per_pipeline_stage",
        "num_pipeline_repeats",
        "num_pipeline_microbatches",
        "pipeline_parallel_layers",
    ] {
        let found = settings.integer(name)?.filter(|found| found.stated && found.value > 0);
        if piped {
            out.put_found(&format!("xla.{name}"), found);
        }
    }
    for name in [
        "pipeline_delay_activation_forwarding",
        "pipeline_fsdp_ag_once",
        "pipeline_fsdp_ag_per_repeat",
        "set_remat_policy_on_pipeline_iterations",
        "set_remat_policy_on_layers_per_stage",
        "scan_pipeline_iterations",
        "scan_layers_per_stage",
    ] {
        let found = settings.flag(name)?.filter(|found| found.stated);
        if piped {
            out.put_found(&format!("xla.{name}"), found);
        }
    }
    Ok(())
}
