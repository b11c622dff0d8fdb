//! axolotl's YAML configurations of full fine-tuning: transformers' classes under accelerate's FSDP.
//!
//! Source: axolotl 0.19.0, `src/axolotl/utils/schemas/{config,fsdp,training}.py`.

use std::sync::LazyLock;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::Settings;
use super::syntax::{overrides, yaml};
use super::table::Table;
use super::why::{Found, Why};
use super::{plugin, whose};
use crate::tables;

/// Reads axolotl's configurations.
pub const IMPORTER: Importer = Importer {
    name: "axolotl",
    reads: "YAML configurations of full fine-tuning",
    marks: "a YAML with base_model, and micro_batch_size, datasets or sequence_len",
    sniff,
    read,
    tables: None,
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/axolotl.toml")).expect("a test reads every table"));

fn sniff(text: &str) -> bool {
    let begins = |name: &str| text.lines().any(|line| line.starts_with(name));
    begins("base_model:") && (begins("micro_batch_size:") || begins("datasets:") || begins("sequence_len:"))
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = yaml::read(request.file, request.text)?;
    raw.extend(overrides::read(request.overrides));
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    machine::put(&mut out, request, IMPORTER.name, Kind::Gpus)?;
    full(&settings)?;
    let base = settings.word("base_model")?;
    let title = base.as_ref().map_or_else(|| "a model".to_owned(), |found| found.value.clone());
    let model = whose::put(&mut out, request, base, "base_model")?;
    out.put("description", format!("{title}, axolotl"), Why::code("base_model"));
    if let Some(found) = settings.value("deepspeed") {
        let what = format!("a configuration that names a file of DeepSpeed, which is not read along ({}),", found.why);
        let remedy = "import that file: windtunnel import deepspeed ds_config.json --model config.json";
        return Err(settings.unsupported("deepspeed", what, remedy));
    }
    let sharded = settings.value("fsdp").is_some() || settings.beginning("fsdp_config.").next().is_some();
    if !sharded {
        let what = "replicas of the whole model (DDP), without fsdp_config,";
        return Err(settings.unsupported("fsdp_config", what, "add fsdp_config with fsdp_version: 2"));
    }
    let version = settings.integer("fsdp_config.version")?;
    plugin::put(&mut out, &settings, &model, version)?;
    precision(&mut out, &settings)?;
    recompute(&mut out, &settings)?;
    mesh(&mut out, &settings)?;
    batch(&mut out, &settings)?;
    kernels(&mut out, &settings)?;
    optimizer(&mut out, &settings)?;
    Ok(out.finish(&settings))
}

/// Refuses adapters and quantized weights.
fn full(settings: &Settings<'_>) -> Result<(), ImportError> {
    let remedy = "import a configuration of full fine-tuning: adapters are not simulated yet";
    if let Some(found) = settings.word("adapter")?.filter(|found| !found.value.is_empty()) {
        let what = format!("an adapter beside frozen weights ({})", found.value);
        return Err(settings.unsupported("adapter", what, remedy));
    }
    for key in ["load_in_4bit", "load_in_8bit"] {
        if settings.is_set(key)? {
            return Err(settings.unsupported(key, "weights that are kept in 4 or 8 bits", remedy));
        }
    }
    Ok(())
}

fn precision(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let half = settings.word("fp16")?.filter(|found| found.value == "true");
    let brain = settings.word("bf16")?;
    match (half, brain) {
        (Some(found), _) => plugin::bf16(out, "fp16", found.why),
        (None, Some(found)) if matches!(found.value.as_str(), "auto" | "true" | "full") => {
            let why = if found.value == "auto" { found.why.so("the GPU has bf16") } else { found.why };
            plugin::bf16(out, "bf16", why);
        }
        (None, found) => {
            let why = found.map_or_else(|| Why::code("neither bf16 nor fp16"), |found| found.why);
            for key in ["precision.storage", "precision.param", "precision.reduce"] {
                out.put(key, "fp32", why.clone());
            }
        }
    }
    if let Some(found) = settings.word("tf32")?.filter(|found| found.value != "false") {
        out.put("precision.tf32", true, found.why);
    }
    let gathers = settings.flag("fp8_enable_fsdp_float8_all_gather")?.filter(|found| found.value);
    if let Some(found) = settings.flag("fp8")?.filter(|found| found.value) {
        let changes = "linears in float8 under transformers' classes are predicted in bf16: more time than they take";
        let both = gathers.map_or(found.why.clone(), |gathers| found.why.and(&gathers.why));
        out.without("fp8", "true", &both.to_string(), changes);
    }
    Ok(())
}

fn recompute(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let reentrant = settings.flag("gradient_checkpointing_kwargs.use_reentrant")?;
    let away = settings.word("activation_offloading")?.filter(|found| found.value != "false");
    let Some(found) = settings.word("gradient_checkpointing")?.filter(|found| found.value != "false") else {
        if out.get("activation_checkpointing.policy").is_none() {
            out.put("activation_checkpointing.policy", "none", Why::code("no gradient_checkpointing"));
        }
        return Ok(());
    };
    out.put("activation_checkpointing.policy", "full", found.why);
    out.put_found("activation_checkpointing.use_reentrant", reentrant.filter(|found| found.value));
    if let Some(found) = away {
        out.put("activation_checkpointing.offload", "own_stream", found.why);
    }
    Ok(())
}

fn mesh(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    out.put("mesh.tp", 1, Why::code("no tensor_parallel_size"));
    for (key, source) in [
        ("mesh.tp", "tensor_parallel_size"),
        ("mesh.cp", "context_parallel_size"),
        ("mesh.dp_shard", "dp_shard_size"),
        ("mesh.dp_replicate", "dp_replicate_size"),
    ] {
        out.put_found(key, settings.count(source)?.filter(|found| found.value > 1));
    }
    if out.degree("mesh.tp") > 1 {
        let why = Why::code("transformers' tensor parallelism keeps whole sequences between modules");
        out.put("tensor_parallel.sequence", false, why);
        out.put("tensor_parallel.loss", false, Why::code("transformers' head gathers its logits"));
    }
    Ok(())
}

fn batch(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    for (key, source) in [
        ("batch.sequence", "sequence_len"),
        ("batch.micro", "micro_batch_size"),
        ("batch.accumulation", "gradient_accumulation_steps"),
    ] {
        let found = settings.needed(source, &format!("set {source}"))?;
        out.put(key, found.value, found.why);
    }
    let packed = settings.is_set("sample_packing")?;
    let padded = settings.is_set("pad_to_sequence_len")?;
    if packed {
        let changes = "attention ends at documents: it takes less time than over whole sequences";
        out.without("sample_packing", "true", &settings.comment("sample_packing"), changes);
    } else if !padded {
        let changes = "sequences are as long as the longest of a batch: here all have batch.sequence tokens";
        out.without("pad_to_sequence_len", "false", &settings.comment("pad_to_sequence_len"), changes);
    }
    Ok(())
}

fn kernels(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let implementation = settings.word("attn_implementation")?;
    let flags = [("flash_attention", "flash_attention_2"), ("sdp_attention", "sdpa"), ("eager_attention", "eager")];
    let mut flagged = None;
    for (key, name) in flags {
        let found = settings.flag(key)?.filter(|found| found.value);
        flagged = flagged.or(found.map(|found| Found { value: name.to_owned(), why: found.why, stated: true }));
    }
    if let Some(found) = implementation.or(flagged) {
        match found.value.as_str() {
            name @ ("sdpa" | "eager" | "flash_attention_2") => {
                out.put("attention.implementation", name, found.why);
                if name == "flash_attention_2" {
                    out.put("attention.backend", "flash2", Why::code("flash-attn's own kernels"));
                }
            }
            "flex_attention" => out.put("attention.backend", "flex", found.why),
            other => {
                let changes = "other kernels of attention than sdpa's";
                out.without("attn_implementation", other, &found.why.to_string(), changes);
            }
        }
    }
    let fused = settings.flag("liger_fused_linear_cross_entropy")?.filter(|found| found.value);
    if let Some(found) = fused {
        out.put("loss.kind", "fused_linear", found.why);
    }
    for (key, what) in [
        ("liger_rope", "rotary embeddings are one kernel of Liger's"),
        ("liger_rms_norm", "norms are one kernel of Liger's"),
        ("liger_glu_activation", "the gated activation is one kernel of Liger's"),
        ("cut_cross_entropy", "head and loss are one kernel, and logits are never kept"),
    ] {
        if settings.is_set(key)? {
            out.without(
                key,
                "true",
                &settings.comment(key),
                format!("{what}: time, and memory of what backward keeps"),
            );
        }
    }
    if let Some(found) = settings.word("torch_compile")?.filter(|found| found.value == "true") {
        let changes = "the whole model is compiled, graph breaks and all: the time of pointwise work, and memory of what backward keeps";
        out.without("torch_compile", "true", &found.why.to_string(), changes);
    }
    Ok(())
}

fn optimizer(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let names = [("adamw_torch_fused", "fused"), ("adamw_torch", "foreach"), ("adamw_hf", "foreach")];
    if let Some(found) = settings.word("optimizer")? {
        let Some((_, way)) = names.iter().find(|(name, _)| *name == found.value) else {
            let what = format!("the optimizer {:?}", found.value);
            return Err(settings.unsupported("optimizer", what, "set it to adamw_torch_fused"));
        };
        out.put("optimizer.name", "adamw", found.why.clone());
        out.put("optimizer.implementation", *way, found.why);
    }
    out.put_found("optimizer.weight_decay", settings.number("weight_decay")?);
    let clip = settings.number("max_grad_norm")?;
    let default = || Why::code("max_grad_norm is not set: the Trainer's is 1.0");
    let (value, why) = clip.map_or_else(|| (true, default()), |found| (found.value > 0.0, found.why));
    out.put("optimizer.clip_grad_norm", value, why);
    Ok(())
}
