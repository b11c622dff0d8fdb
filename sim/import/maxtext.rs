//! MaxText's YAML configurations, with `key=value` on the command line, and scripts that start its training.
//!
//! Source: AI-Hypercomputer/maxtext, `src/maxtext/configs/base.yml`, `configs/types.py`, `utils/max_utils.py`.

mod blocks;
mod gpu;
mod mesh;
mod models;
mod script;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use serde_json::Map;
use toml::Value;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::{Raw, Settings};
use super::table::Table;
use super::why::{Found, Why};
use crate::plan::xla::{GpuFlags, TENSORS, flags};
use crate::tables;
use script::Said;

/// Reads MaxText's configurations.
pub const IMPORTER: Importer = Importer {
    name: "maxtext",
    reads: "YAML configurations and launch scripts, for TPUs and GPUs",
    marks: "per_device_batch_size with max_target_length or base.yml",
    sniff,
    read,
    tables: Some(of_tables),
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/maxtext.toml")).expect("a test reads every table"));

fn sniff(text: &str) -> bool {
    let named = || text.contains("base.yml") || text.to_ascii_lowercase().contains("maxtext");
    text.contains("per_device_batch_size") && (text.contains("max_target_length") || named())
        || text.contains("base_config:") && text.contains("base.yml")
        || text.lines().any(script::starts_training)
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    understood(request, script::read(request)?)
}

/// The scenario of a run's keys and of the compiler's flags in its environment, as tables have them.
fn of_tables(
    request: &Request<'_>,
    keys: &Map<String, serde_json::Value>,
    variables: &Map<String, serde_json::Value>,
) -> Result<Imported, ImportError> {
    let of = |(key, value): (&String, &serde_json::Value)| Raw { key: key.clone(), value: value.clone(), line: None };
    let flags = FLAGS.iter().filter_map(|name| variables.get(*name)?.as_str());
    let flags = flags.flat_map(str::split_whitespace).map(str::to_owned).collect();
    understood(request, Said { raw: keys.iter().map(of).collect(), flags, is_command: true })
}

/// Variables of the environment with the compiler's flags.
const FLAGS: [&str; 2] = ["LIBTPU_INIT_ARGS", "XLA_FLAGS"];

fn understood(request: &Request<'_>, mut said: Said) -> Result<Imported, ImportError> {
    let (file, under) = models::file_of(&mut said.raw, said.is_command);
    let settings = Settings::new(request.file, &TABLE, said.raw, request.version).over(file);
    let mut out = Imported::of(&settings);
    let on_gpus = on_gpus(&settings)?;
    out.put("runtime", "xla", Why::code("MaxText is compiled whole by XLA"));
    machine::put(&mut out, request, IMPORTER.name, if on_gpus { Kind::Gpus } else { Kind::Slices })?;
    models::model(&mut out, &settings, &under)?;
    match on_gpus {
        true => gpu::mesh(&mut out, &settings, request)?,
        false => mesh::mesh(&mut out, &settings, request)?,
    }
    batch(&mut out, &settings)?;
    compiled(&mut out, &settings, on_gpus)?;
    flags(&mut out, &said.flags, on_gpus);
    pipeline(&mut out, &settings)?;
    Ok(out.finish(&settings))
}

/// Writes `xla.flags`: those of the compiler's flags that are known here. On TPUs they may have the names of MaxText's library.
fn flags(out: &mut Imported, flags: &[String], on_gpus: bool) {
    let (variable, such_as) = match on_gpus {
        true => ("XLA_FLAGS", "such as xla_gpu_enable_pipelined_all_gather=true"),
        false => ("LIBTPU_INIT_ARGS", "by their own names or by those of MaxText's benchmarks/xla_flags_library.py"),
    };
    let known = |flag: &&str| if on_gpus { GpuFlags::of(&[*flag]).is_ok() } else { flags::named(&[*flag]).is_ok() };
    let (seen, strange): (Vec<&str>, Vec<&str>) = flags.iter().map(String::as_str).partition(known);
    if !strange.is_empty() {
        out.note(format!("Flags of the compiler that are not known here, and left out: {}.", strange.join(", ")));
    }
    if seen.is_empty() {
        out.note(format!(
            "{variable} is not in the file: write the flags that the job runs with in xla.flags, {such_as}."
        ));
        return;
    }
    out.put("xla.flags", seen.into_iter().map(Value::from).collect::<Vec<_>>(), Why::code(variable));
}

/// Whether it is compiled for GPUs: by `hardware`, or by the folder of the configuration that a script names.
fn on_gpus(settings: &Settings<'_>) -> Result<bool, ImportError> {
    let hardware = settings.word("hardware")?.filter(|found| found.stated);
    let config = settings.word(script::CONFIG)?;
    Ok(match (hardware, config) {
        (Some(hardware), _) => hardware.value.starts_with("gpu"),
        (None, Some(config)) => config.value.contains("gpu/"),
        (None, None) => false,
    })
}

/// Writes `[batch]`.
fn batch(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let sequence = settings.needed("max_target_length", "add max_target_length=N")?;
    out.put("batch.sequence", sequence.value, sequence.why);
    let key = "per_device_batch_size";
    let each = settings.number(key)?.ok_or_else(|| settings.missing(key, "a number", "add per_device_batch_size=N"))?;
    // Devices that split the model share their batches.
    let shared: i64 = ["mesh.tensor", "mesh.context", "mesh.dcn_tensor", "mesh.dcn_context"]
        .map(|key| out.degree(key))
        .iter()
        .product();
    let micro = each.value * shared as f64;
    if micro.fract() != 0.0 || !(1.0..=65536.0).contains(&micro) {
        return Err(settings.wrong(key, "a number that makes whole sequences of the devices that share them", "1"));
    }
    let why = match shared {
        1 => each.why,
        _ => each.why.so(&format!("{shared} devices share their sequences")),
    };
    out.put("batch.micro", micro as i64, why);
    let parts = settings.count("gradient_accumulation_steps")?;
    out.put_found("batch.accumulation", parts.filter(|found| found.value > 1));
    Ok(())
}

/// What a step takes otherwise by more than any interval says: states that are fetched from the host and sent back in every step, and
/// tensors of twice the size.
const OTHERWISE: [(&str, &str, &str); 3] = [
    ("dtype", "bfloat16", "activations in"),
    ("optimizer_memory_host_offload", "false", "optimizer states in the host's memory:"),
    ("parameter_memory_host_offload", "false", "parameters in the host's memory:"),
];

fn compiled(out: &mut Imported, settings: &Settings<'_>, on_gpus: bool) -> Result<(), ImportError> {
    for (key, as_simulated, what) in OTHERWISE {
        let Some(found) = settings.value(key) else { continue };
        let value = found.value.as_str().map_or_else(|| found.value.to_string(), str::to_owned).to_lowercase();
        if value != as_simulated {
            let remedy = format!(
                "add {key}={as_simulated}, or lower the step and ask XLA's compiler: windtunnel compile-check --program step.mlir --topology v6e:4x4"
            );
            return Err(settings.unsupported(key, format!("{what} {key} = {value}"), &remedy));
        }
    }
    let policy = settings.word("remat_policy")?;
    let custom = policy.as_ref().is_some_and(|found| found.value == "custom");
    let scanned = settings.flag("scan_layers")?.is_none_or(|found| found.value);
    match policy {
        // `jax.checkpoint` is around a scan's body whatever the policy says, and one of none saves nothing (`nnx_scan.py`; MaxText 0.2.5
        // lowers both to the same program).
        Some(none) if none.value.eq_ignore_ascii_case("none") && scanned => {
            out.put("xla.remat_policy", "full", none.why);
            out.note(
                "remat_policy = none is MaxText's full where layers are scanned: write scan_layers=false to keep all"
                    .to_owned(),
            );
        }
        policy => out.put_found("xla.remat_policy", policy),
    }
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
    if let Some(found) = settings.word("weight_quantization_calibration_method")? {
        let fixed = found.stated && found.value.starts_with("fixed") && out.get("xla.quantization").is_some();
        out.put_found("xla.fixed_calibration", fixed.then(|| found.with(true)));
    }
    if let Some(found) = settings.number("gradient_clipping_threshold")? {
        out.put("xla.gradient_clipping", found.value > 0.0, found.why);
    }
    let types = [("float32", "float32"), ("bfloat16", "bfloat16")];
    let weights = settings.choice("weight_dtype", &types)?;
    let follows = weights.clone().filter(|found| found.value != "float32");
    let follows = follows.map(|found| Found { why: found.why.clone().so("moments follow it"), ..found });
    out.put_found("xla.mu_dtype", settings.choice("mu_dtype", &types)?.or(follows));
    out.put_found("xla.weight_dtype", weights);
    // Pax's Adam has the states and sums of AdamW.
    let kinds = [("adamw", "adamw"), ("adam_pax", "adamw"), ("sgd", "sgd")];
    let optimizer = settings.choice("opt_type", &kinds)?;
    out.put_found("optimizer.name", optimizer.filter(|found| found.stated));
    let fp32 = settings.flag("float32_qk_product")?.filter(|found| found.value);
    if out.get("xla.attention").and_then(Value::as_str) == Some("dot_product") {
        out.put_found("xla.float32_qk_product", fp32);
    }
    capacity(out, settings)
}

/// Writes how many tokens an expert takes: MaxText reads a capacity beside dense matmuls alone.
fn capacity(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let dense = settings.flag("sparse_matmul")?.filter(|found| !found.value);
    let sorted = dense.is_none();
    let capacity = settings.number("capacity_factor")?.filter(|found| found.value > 0.0);
    match (dense, capacity) {
        (Some(_), Some(capacity)) => {
            // Whose kernel multiplies sorted rows does not matter where none are sorted.
            let _ = settings.value("megablox");
            out.put("xla.capacity_factor", capacity.value, capacity.why);
        }
        (Some(dense), None) => {
            let changes = "every expert multiplies every token: time and memory of a mixture";
            out.without("sparse_matmul", "false", &dense.why.to_string(), changes);
        }
        (None, Some(capacity)) => {
            out.note(format!(
                "capacity_factor = {} changes nothing: MaxText reads it with sparse_matmul=False alone.",
                capacity.value
            ));
        }
        (None, None) => {}
    }
    over_axis(out, settings, sorted)
}

/// How sorted experts get their rows over an expert axis.
fn over_axis(out: &mut Imported, settings: &Settings<'_>, sorted: bool) -> Result<(), ImportError> {
    let ring = settings.flag("use_ring_of_experts")?.filter(|found| found.value);
    let buffer = settings.number("ragged_buffer_factor")?.filter(|found| found.value > 0.0);
    let spread = sorted && out.degree("mesh.expert") > 1 && out.get("xla.capacity_factor").is_none();
    match (spread, ring) {
        (true, Some(ring)) => {
            out.put("xla.expert_exchange", "ring", ring.why);
            if let Some(buffer) = buffer {
                let changes =
                    "rows of a ring's buffer: MaxText bounds them with use_ragged_sort alone, which is not simulated";
                out.without("ragged_buffer_factor", &buffer.value.to_string(), &buffer.why.to_string(), changes);
            }
        }
        (true, None) => out.put_found("xla.ragged_buffer_factor", buffer),
        (false, ring) => {
            let named = [ring.map(|_| "use_ring_of_experts"), buffer.map(|_| "ragged_buffer_factor")];
            for name in named.into_iter().flatten() {
                out.note(format!(
                    "{name} changes nothing: MaxText reads it of sorted experts over an expert axis alone."
                ));
            }
        }
    }
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
