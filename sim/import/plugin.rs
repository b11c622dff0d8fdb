//! accelerate's FSDP plugin, as its own configurations and axolotl's set it up: keys below `fsdp_config`, without `fsdp_` before them.
//!
//! Source: accelerate 1.15.0, `src/accelerate/utils/{dataclasses,fsdp_utils}.py`, `accelerator.py`.

use super::error::ImportError;
use super::imported::Imported;
use super::settings::Settings;
use super::why::{Found, Why};
use crate::model::ModelConfig;
use crate::scenario::release_defaults;

/// Whose model classes they are.
const CLASSES: &str = "transformers 5.23";

/// A key of the plugin.
fn at(name: &str) -> String {
    format!("fsdp_config.{name}")
}

fn code(what: &str) -> Why {
    Why::code(format!("accelerate 1.15.0: {what}"))
}

/// Writes the runtime, what is sharded and how, and recompute.
pub fn put(
    out: &mut Imported,
    settings: &Settings<'_>,
    model: &ModelConfig,
    version: Option<Found<i64>>,
) -> Result<(), ImportError> {
    let first = match &version {
        Some(found) if found.value == 2 => false,
        Some(found) if found.value != 1 => {
            return Err(settings.wrong("fsdp_config.version", "1 or 2", "2 for fully_shard"));
        }
        _ => true,
    };
    let runtime = if first { "fsdp1" } else { "fsdp2" };
    out.put("runtime", runtime, version.map_or_else(|| Why::code("no fsdp_version: 1"), |found| found.why));
    classes(out, model, runtime);
    wrapped(out, settings, model, first)?;
    sharded(out, settings, first)?;
    if let Some(found) = settings.flag(&at("offload_params"))?.filter(|found| found.value) {
        out.put("fsdp.cpu_offload", true, found.why);
    }
    if let Some(found) = settings.flag(&at("activation_checkpointing"))? {
        let policy = if found.value { "full" } else { "none" };
        out.put("activation_checkpointing.policy", policy, found.why);
    }
    let away = settings.flag(&at("activation_checkpointing_offload"))?.filter(|found| found.value);
    if let Some(found) = away {
        out.put("activation_checkpointing.offload", "default_stream", found.why);
    }
    Ok(())
}

/// Writes how transformers' classes are written.
pub fn classes(out: &mut Imported, model: &ModelConfig, runtime: &str) {
    let read = |key: &str| key != "framework.experts" || model.experts().is_some();
    for (key, value, source) in release_defaults(CLASSES, runtime).into_iter().filter(|(key, ..)| read(key)) {
        out.put(&key, value, Why::code(source));
    }
}

fn wrapped(out: &mut Imported, settings: &Settings<'_>, model: &ModelConfig, first: bool) -> Result<(), ImportError> {
    let key = at("auto_wrap_policy");
    let policies = [("TRANSFORMER_BASED_WRAP", true), ("NO_WRAP", false), ("SIZE_BASED_WRAP", false)];
    let classes = settings.word(&at("transformer_layer_cls_to_wrap"))?;
    let _ = settings.count(&at("min_num_params"))?;
    let Some(found) = settings.choice(&key, &policies)? else {
        out.put("fsdp.wrap", "root", Why::code("no auto_wrap_policy: the whole model is one unit"));
        return Ok(());
    };
    if settings.word(&key)?.is_some_and(|found| found.value == "SIZE_BASED_WRAP") {
        let what = "modules that are wrapped by their size";
        return Err(settings.unsupported(&key, what, "set it to TRANSFORMER_BASED_WRAP"));
    }
    let why = classes.map_or(found.why.clone(), |classes| found.why.clone().and(&classes.why));
    out.put("fsdp.wrap", if found.value { "block" } else { "root" }, why);
    if first || !found.value {
        return Ok(());
    }
    if model.tied_head {
        let note = "accelerate makes norm, embedding and tied head one unit: here they are the root's.";
        out.note(note);
        return Ok(());
    }
    let ends = ["embedding", "norm_and_head"].map(toml::Value::from).to_vec();
    out.put("fsdp.ends", toml::Value::Array(ends), code("utils/fsdp_utils.py, fsdp2_prepare_model"));
    out.put("fsdp.head_reshard_after_forward", false, code("utils/fsdp_utils.py, fsdp2_prepare_model"));
    Ok(())
}

/// Strategies of FSDP1: whether parameters are resharded after forward, and whether nodes are replicas.
const STRATEGIES: [(&str, (bool, bool)); 4] = [
    ("FULL_SHARD", (true, false)),
    ("SHARD_GRAD_OP", (false, false)),
    ("HYBRID_SHARD", (true, true)),
    ("HYBRID_SHARD_ZERO2", (false, true)),
];

fn sharded(out: &mut Imported, settings: &Settings<'_>, first: bool) -> Result<(), ImportError> {
    let reshards = settings.word(&at("reshard_after_forward"))?;
    let strategy = settings.word(&at("sharding_strategy"))?;
    let prefetch = settings.word(&at("backward_prefetch"))?;
    let forward = settings.flag(&at("forward_prefetch"))?.filter(|found| found.value);
    let original = settings.flag(&at("use_orig_params"))?;
    let limits = settings.flag(&at("limit_all_gathers"))?;
    if !first {
        if let Some(found) = settings.flag(&at("reshard_after_forward"))? {
            out.put("fsdp.reshard_after_forward", found.value, found.why);
        }
        return Ok(());
    }
    // FSDP1 takes the strategy's name under either key.
    let key = if reshards.as_ref().is_some_and(|found| STRATEGIES.iter().any(|(name, _)| *name == found.value)) {
        at("reshard_after_forward")
    } else {
        at("sharding_strategy")
    };
    if strategy.is_some_and(|found| matches!(found.value.as_str(), "NO_SHARD" | "3")) {
        let what = "NO_SHARD (replicas of everything)";
        return Err(settings.unsupported(&key, what, "set sharding_strategy to FULL_SHARD"));
    }
    let numbered = [("1", (true, false)), ("2", (false, false)), ("4", (true, true)), ("5", (false, true))];
    let all: Vec<(&str, (bool, bool))> = STRATEGIES.into_iter().chain(numbered).collect();
    if let Some(found) = settings.choice(&key, &all)? {
        out.put("fsdp.reshard_after_forward", found.value.0, found.why.clone());
        if found.value.1 {
            let nodes = out.get("topology.nodes").and_then(toml::Value::as_integer).unwrap_or(1);
            if nodes > 1 {
                out.put("mesh.dp_replicate", nodes, found.why.so("each node is a replica"));
            }
        }
    }
    if let Some(found) = prefetch {
        let value = match found.value.as_str() {
            "BACKWARD_PRE" | "backward_pre" => "pre",
            "BACKWARD_POST" | "backward_post" => "post",
            "NO_PREFETCH" | "no_prefetch" => "none",
            _ => {
                let expected = "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH";
                return Err(settings.wrong(&at("backward_prefetch"), expected, "one of these"));
            }
        };
        out.put("fsdp1.backward_prefetch", value, found.why);
    }
    out.put_found("fsdp1.use_orig_params", original);
    out.put_found("fsdp1.limit_all_gathers", limits);
    if let Some(found) = forward {
        let changes = "forward gathers the next unit before it needs it: less exposed time, where the host is late";
        out.without("forward_prefetch", "true", &found.why.to_string(), changes);
    }
    Ok(())
}

/// Writes the types of `mixed_precision`, as the plugin and autocast have them.
pub fn precision(out: &mut Imported, settings: &Settings<'_>, key: &str) -> Result<(), ImportError> {
    let words = [("no", ""), ("false", ""), ("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8")];
    let Some(found) = settings.choice(key, &words)? else {
        return full(out, Why::code(format!("no {key}")));
    };
    match found.value {
        "" => full(out, found.why),
        "fp8" => Err(settings.unsupported(key, "mixed_precision fp8 of accelerate", "set it to bf16")),
        kind => {
            bf16(out, kind, found.why);
            Ok(())
        }
    }
}

fn full(out: &mut Imported, why: Why) -> Result<(), ImportError> {
    for key in ["precision.storage", "precision.param", "precision.reduce"] {
        out.put(key, "fp32", why.clone());
    }
    Ok(())
}

/// Parameters are stored in fp32, and gathered, computed with and reduced in the type.
pub fn bf16(out: &mut Imported, kind: &str, why: Why) {
    out.put("precision.storage", "fp32", code("accelerator.py, parameters that are trained are cast to fp32"));
    // accelerator.py also runs the model's forward under autocast, which finds parameters of that type and casts none; and output_dtype
    // casts the loss alone, which transformers' classes return.
    for key in ["precision.param", "precision.reduce"] {
        out.put(key, kind, why.clone());
    }
}
