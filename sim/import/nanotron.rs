//! nanotron's YAML configurations.
//!
//! Source: huggingface/nanotron, `src/nanotron/config/{config,parallelism_config,models_config}.py`.

use std::sync::LazyLock;

use toml::Value;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::Settings;
use super::syntax::{overrides, yaml};
use super::table::Table;
use super::why::Why;
use crate::tables;

/// Reads nanotron's configurations.
pub const IMPORTER: Importer = Importer {
    name: "nanotron",
    reads: "YAML configurations",
    marks: "a YAML of parallelism, tokens and model_config",
    sniff,
    read,
    tables: None,
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/nanotron.toml")).expect("a test reads every table"));

fn sniff(text: &str) -> bool {
    let begins = |name: &str| text.lines().any(|line| line.starts_with(name));
    begins("parallelism:") && begins("tokens:") && text.contains("model_config:")
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = yaml::read(request.file, request.text)?;
    raw.extend(overrides::read(request.overrides));
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    out.put("runtime", "nanotron", Why::code("a configuration of nanotron"));
    machine::put(&mut out, request, IMPORTER.name, Kind::Gpus)?;
    model(&mut out, &settings)?;
    mesh(&mut out, &settings)?;
    for (key, source) in [
        ("batch.sequence", "tokens.sequence_length"),
        ("batch.micro", "tokens.micro_batch_size"),
        ("batch.accumulation", "tokens.batch_accumulation_per_replica"),
    ] {
        let found = settings.needed(source, &format!("add {source}=N"))?;
        out.put(key, found.value, found.why);
    }
    let types = [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")];
    out.put_found("precision.param", settings.choice("model.dtype", &types)?);
    out.put_found("nanotron.ddp_bucket_cap_mb", settings.count("model.ddp_bucket_cap_mb")?);
    let stage = settings.integer("optimizer.zero_stage")?;
    if let Some(found) = stage.as_ref().filter(|found| !(0..=1).contains(&found.value)) {
        let what = format!("nanotron's ZeRO stage {}", found.value);
        return Err(settings.unsupported("optimizer.zero_stage", what, "set optimizer.zero_stage to 0 or 1"));
    }
    out.put_found("nanotron.zero_stage", stage);
    if let Some(found) = settings.flag("optimizer.accumulate_grad_in_fp32")?.filter(|found| !found.value) {
        let changes = "gradients are summed in the parameters' type: less memory";
        out.without("optimizer.accumulate_grad_in_fp32", "false", &found.why.to_string(), changes);
    }
    if let Some(found) =
        settings.word("optimizer.optimizer_factory.name")?.filter(|found| !found.value.eq_ignore_ascii_case("adamw"))
    {
        let what = format!("the optimizer {:?}", found.value);
        return Err(settings.unsupported("optimizer.optimizer_factory.name", what, "set it to adamW"));
    }
    let run = settings.word("general.run")?.map_or_else(|| "a run".to_owned(), |found| found.value);
    out.put("description", format!("{run}, nanotron"), Why::code("general.run"));
    Ok(out.finish(&settings))
}

fn model(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let at = |name: &str| format!("model.model_config.{name}");
    if let Some(found) = settings.value(&at("moe_config")).filter(|found| found.value.is_object()) {
        let what = format!("nanotron's mixture of experts ({})", found.why);
        return Err(settings.unsupported(&at("moe_config"), what, "remove moe_config"));
    }
    if settings.beginning("model.model_config.moe_config.").next().is_some() {
        return Err(settings.unsupported(&at("moe_config"), "nanotron's mixture of experts", "remove moe_config"));
    }
    let kinds = settings.beginning("model.model_config.is_").map(str::to_owned).collect::<Vec<_>>();
    for key in kinds.iter().filter(|key| !key.ends_with("is_llama_config")) {
        if settings.is_set(key)? {
            let changes =
                "the model is taken for a Llama of the same sizes: norms and biases of attention, and little time";
            out.without(key, "true", &settings.comment(key), changes);
        }
    }
    let _ = settings.flag(&at("is_llama_config"))?;
    out.put("model.name", "llama-3-8b", Why::code("nanotron's Llama, with the sizes below"));
    let sizes = [
        ("model.layers", "num_hidden_layers"),
        ("model.hidden", "hidden_size"),
        ("model.heads", "num_attention_heads"),
        ("model.ffn", "intermediate_size"),
        ("model.vocab", "vocab_size"),
    ];
    for (key, name) in sizes {
        let found = settings.needed(&at(name), &format!("add {}=N", at(name)))?;
        out.put(key, found.value, found.why);
    }
    match settings.count(&at("num_key_value_heads"))? {
        Some(found) => out.put("model.kv_heads", found.value, found.why),
        None => {
            let heads = out.degree("model.heads");
            out.put("model.kv_heads", heads, Why::code("num_key_value_heads is not set: as many as heads"));
        }
    }
    out.put_found("model.tied_head", settings.flag(&at("tie_word_embeddings"))?);
    Ok(())
}

fn mesh(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    for (key, source) in [
        ("mesh.dp", "parallelism.dp"),
        ("mesh.tp", "parallelism.tp"),
        ("mesh.pp", "parallelism.pp"),
        ("mesh.cp", "parallelism.context_parallel_size"),
    ] {
        let found = settings.degree(source)?;
        if found.value > 1 || key != "mesh.cp" {
            out.put(key, found.value, found.why);
        }
    }
    if let Some(found) = settings.count("parallelism.expert_parallel_size")?.filter(|found| found.value > 1) {
        let what = format!("experts over {} ranks of nanotron", found.value);
        return Err(settings.unsupported("parallelism.expert_parallel_size", what, "set it to 1"));
    }
    let upper = |name: &str| Value::from(name);
    let modes = [("REDUCE_SCATTER", upper("REDUCE_SCATTER")), ("ALL_REDUCE", upper("ALL_REDUCE"))];
    let mode = settings.choice("parallelism.tp_mode", &modes)?;
    let gather = settings.flag("parallelism.tp_recompute_allgather")?;
    let engine = settings.choice("parallelism.pp_engine", &[("1f1b", "1f1b"), ("afab", "afab")])?;
    if out.degree("mesh.tp") > 1 {
        if mode.as_ref().is_some_and(|found| found.value.as_str() == Some("REDUCE_SCATTER")) {
            out.put_found("nanotron.tp_recompute_allgather", gather);
        }
        out.put_found("nanotron.tp_mode", mode);
    }
    if out.degree("mesh.pp") > 1 {
        out.put_found("nanotron.pp_engine", engine);
    }
    out.put_found("nanotron.recompute_layer", settings.flag("parallelism.recompute_layer")?);
    Ok(())
}
