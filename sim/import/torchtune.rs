//! torchtune's YAML configurations of full fine-tuning and of LoRA.
//!
//! Source: torchtune 0.6.1, `recipes/full_finetune_distributed.py`, `torchtune/training/_distributed.py`, `models/*/_model_builders.py`.

mod lora;

use std::sync::LazyLock;

use toml::Value;

use super::error::ImportError;
use super::hf;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::Settings;
use super::syntax::{overrides, yaml};
use super::table::Table;
use super::why::Why;
use crate::model::ModelConfig;
use crate::model::huggingface::shipped;
use crate::tables;

/// Reads torchtune's configurations.
pub const IMPORTER: Importer = Importer {
    name: "torchtune",
    reads: "YAML configurations of full fine-tuning and LoRA",
    marks: "a YAML with _component_: torchtune.…",
    sniff,
    read,
    tables: None,
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/torchtune.toml")).expect("a test reads every table"));

/// torchtune's builders and the shipped models of the same sizes.
const MODELS: [(&str, &str); 25] = [
    ("llama2_7b", "llama-2-7b"),
    ("llama2_13b", "llama-2-13b"),
    ("llama2_70b", "llama-2-70b"),
    ("llama3_8b", "llama-3-8b"),
    ("llama3_70b", "llama-3-70b"),
    ("llama3_1_8b", "llama-3.1-8b"),
    ("llama3_1_70b", "llama-3.1-70b"),
    ("llama3_1_405b", "llama-3.1-405b"),
    ("llama3_2_1b", "llama-3.2-1b"),
    ("llama3_2_3b", "llama-3.2-3b"),
    ("llama3_3_70b", "llama-3.1-70b"),
    ("mistral_7b", "mistral-7b-v0.2"),
    ("gemma_2b", "gemma-2b"),
    ("gemma_7b", "gemma-7b"),
    ("gemma2_2b", "gemma-2-2b"),
    ("gemma2_9b", "gemma-2-9b"),
    ("phi3_mini", "phi-3-mini"),
    ("qwen2_7b", "qwen2.5-7b"),
    ("qwen2_5_0_5b", "qwen2.5-0.5b"),
    ("qwen2_5_1_5b_base", "qwen2.5-1.5b"),
    ("qwen2_5_3b", "qwen2.5-3b"),
    ("qwen2_5_7b_base", "qwen2.5-7b"),
    ("qwen2_5_14b_base", "qwen2.5-14b"),
    ("qwen2_5_32b_base", "qwen2.5-32b"),
    ("qwen2_5_72b_base", "qwen2.5-72b"),
];

/// What its code does, whatever the configuration says.
const CODE: [(&str, &str, &str); 2] = [
    ("framework.rope", "stacked", "torchtune/modules/position_embeddings.py:110"),
    ("fsdp.wrap", "block", "torchtune/training/_distributed.py:557, every layer"),
];

fn sniff(text: &str) -> bool {
    text.contains("_component_: torchtune.")
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = yaml::read(request.file, request.text)?;
    raw.extend(overrides::read(request.overrides));
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    out.put("runtime", "fsdp2", Why::code("torchtune shards with fully_shard (FSDP2)"));
    machine::put(&mut out, request, IMPORTER.name, Kind::Gpus)?;
    let model = model(&mut out, &settings)?;
    for (key, value, at) in CODE {
        out.put(key, value, Why::code(format!("{}: {at}", settings.of())));
    }
    if model.heads() != model.kv_heads() {
        let at = format!("{}: torchtune/modules/attention.py:290", settings.of());
        out.put("framework.repeat_kv", true, Why::code(at));
    }
    mesh(&mut out, &settings)?;
    batch(&mut out, &settings, &model)?;
    sharded(&mut out, &settings)?;
    compiled(&mut out, &settings)?;
    optimizer(&mut out, &settings)?;
    Ok(out.finish(&settings))
}

fn model(out: &mut Imported, settings: &Settings<'_>) -> Result<ModelConfig, ImportError> {
    let key = "model._component_";
    let known = MODELS.map(|(name, _)| name).join(", ");
    let missing = || settings.missing(key, "a builder of torchtune", "set it to torchtune.models.llama3_1.llama3_1_8b");
    let found = settings.word(key)?.ok_or_else(missing)?;
    let name = found.value.rsplit('.').next().unwrap_or_default();
    if name.starts_with("qlora_") || name.starts_with("dora_") {
        let what = format!("an adapter beside packed or normed weights ({name})");
        let remedy = "import a configuration of LoRA or of full fine-tuning: these are not simulated yet";
        return Err(settings.unsupported(key, what, remedy));
    }
    let adapters = name.strip_prefix("lora_");
    if adapters.is_some() {
        lora::put(out, settings)?;
    }
    let name = adapters.unwrap_or(name);
    // Instruct models have the sizes of their base.
    let base = name.strip_suffix("_instruct").map(|name| format!("{name}_base"));
    let sought = base.as_deref().unwrap_or(name);
    let Some((_, shipped)) = MODELS.iter().find(|(known, _)| *known == sought) else {
        let remedy = format!("set it to one of {known}, or write a scenario with model.config");
        return Err(settings.unsupported(key, format!("torchtune's model {name}"), &remedy));
    };
    out.put("model.name", *shipped, found.why.clone());
    out.put("description", format!("{name}, torchtune"), found.why);
    shipped::named(shipped).map_err(|why| ImportError::Model(Box::new(why)))
}

fn mesh(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let tensor = settings.degree("tensor_parallel_dim")?;
    let split = tensor.value > 1;
    out.put("mesh.tp", tensor.value, tensor.why);
    let plan = settings.word("tensor_parallel_plan._component_")?;
    if split {
        let why = plan.map_or_else(|| Why::code("no tensor_parallel_plan"), |found| found.why);
        out.put("tensor_parallel.sequence", true, why.clone().so("its plan splits the sequence between modules"));
        out.put("tensor_parallel.loss", false, why.so("its plan gathers the logits"));
    }
    out.put_found("mesh.dp_shard", settings.count("data_parallel_shard_dim")?);
    out.put_found("mesh.dp_replicate", settings.count("data_parallel_replicate_dim")?.filter(|found| found.value > 1));
    Ok(())
}

fn batch(out: &mut Imported, settings: &Settings<'_>, model: &ModelConfig) -> Result<(), ImportError> {
    let micro = settings.needed("batch_size", "set batch_size")?;
    out.put("batch.micro", micro.value, micro.why);
    let parts = settings.needed("gradient_accumulation_steps", "set gradient_accumulation_steps")?;
    out.put("batch.accumulation", parts.value, parts.why);
    let packed = settings.is_set("dataset.packed")?;
    let longest = settings.count("tokenizer.max_seq_len")?;
    match settings.count("sequence_length")?.or(longest) {
        Some(found) => out.put("batch.sequence", found.value, found.why),
        None => hf::put_sequence(out, model, "tokenizer.max_seq_len is null; add sequence_length=N"),
    }
    if !packed {
        let changes = "sequences are as long as the longest of a batch: here all have batch.sequence tokens";
        out.without("dataset.packed", "false", &settings.comment("dataset.packed"), changes);
    }
    Ok(())
}

fn sharded(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let types = [("bf16", "bf16"), ("fp32", "fp32")];
    let missing = || settings.missing("dtype", "bf16 or fp32", "set dtype");
    let found = settings.choice("dtype", &types)?.ok_or_else(missing)?;
    for key in ["precision.storage", "precision.param", "precision.reduce"] {
        out.put(key, found.value, found.why.clone().so("the model is made in it, and nothing is cast"));
    }
    if let Some(found) = settings.words("custom_sharded_layers")? {
        let named = |name: &String| match name.as_str() {
            "tok_embeddings" => Some("embedding"),
            "output" => Some("head"),
            _ => None,
        };
        let ends: Option<Vec<Value>> = found.value.iter().map(|name| Some(Value::from(named(name)?))).collect();
        let wrong = || settings.wrong("custom_sharded_layers", "tok_embeddings and output", "these, or nothing");
        let ends = ends.ok_or_else(wrong)?;
        if !ends.is_empty() {
            out.put("fsdp.ends", Value::Array(ends), found.why);
        }
    }
    if let Some(found) = settings.flag("fsdp_reshard_after_forward")? {
        out.put("fsdp.reshard_after_forward", found.value, found.why.clone());
        // The root is sharded with the same arguments as the layers.
        out.put("fsdp.root_reshard_after_forward", found.value, found.why);
    }
    if let Some(found) = settings.flag("fsdp_cpu_offload")?.filter(|found| found.value) {
        out.put("fsdp.cpu_offload", true, found.why);
    }
    let (mode, option) = (settings.word("ac_mode")?, settings.word("ac_option")?);
    let full = settings.flag("enable_activation_checkpointing")?;
    let policy = "activation_checkpointing.policy";
    match (mode.as_ref().map(|found| found.value.as_str()), option) {
        (Some("selective"), Some(option)) => {
            let every = option.value.parse().ok().filter(|every: &i64| *every >= 1);
            let wrong = || settings.wrong("ac_option", "a whole number, 1 or more", "2 for every second layer");
            let mut table = toml::Table::new();
            table.insert("every".to_owned(), Value::Integer(every.ok_or_else(wrong)?));
            out.put(policy, Value::Table(table), option.why);
        }
        (Some("full"), _) => {
            if let Some(found) = mode {
                out.put(policy, "full", found.why);
            }
        }
        _ => {
            if let Some(found) = full {
                out.put(policy, if found.value { "full" } else { "none" }, found.why);
            }
        }
    }
    let away = settings.flag("enable_activation_offloading")?.filter(|found| found.value);
    if let Some(found) = away {
        out.put("activation_checkpointing.offload", "own_stream", found.why);
    }
    Ok(())
}

fn compiled(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    if let Some(found) = settings.flag("compile")? {
        out.put("compile.blocks", found.value, found.why.clone());
        if found.value {
            let changes =
                "the loss by parts is compiled too, and predicted as it runs eagerly: a little more time than it takes";
            out.without("compile", "true", &found.why.to_string(), changes);
        }
    }
    let chunks = settings.count("loss.num_output_chunks")?;
    if let Some(found) = settings.word("loss._component_")? {
        let name = found.value.rsplit('.').next().unwrap_or_default();
        match name {
            "CEWithChunkedOutputLoss" => {
                out.put("loss.kind", "chunked_output", found.why.clone());
                let default = "torchtune/modules/loss/ce_chunked_output_loss.py:30, num_output_chunks";
                match chunks {
                    Some(found) => out.put("loss.chunks", found.value, found.why),
                    None => out.put("loss.chunks", 8, Why::code(format!("{}: {default}", settings.of()))),
                }
            }
            "LinearCrossEntropyLoss" => out.put("loss.kind", "chunked_linear", found.why),
            "CrossEntropyLoss" => out.put("loss.kind", "bf16", found.why),
            other => {
                let what = format!("torchtune's loss {other}");
                let remedy = "set it to torchtune.modules.loss.CEWithChunkedOutputLoss";
                return Err(settings.unsupported("loss._component_", what, remedy));
            }
        }
    }
    Ok(())
}

fn optimizer(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let key = "optimizer._component_";
    let missing = || settings.missing(key, "an optimizer of torch", "set it to torch.optim.AdamW");
    let found = settings.word(key)?.ok_or_else(missing)?;
    let name = match found.value.as_str() {
        "torch.optim.AdamW" => "adamw",
        "torch.optim.Adam" => "adam",
        "torch.optim.SGD" => "sgd",
        other => {
            let what = format!("the optimizer {other}");
            return Err(settings.unsupported(key, what, "set it to torch.optim.AdamW"));
        }
    };
    out.put("optimizer.name", name, found.why);
    let each = settings.flag("optimizer.foreach")?.filter(|found| !found.value);
    match (settings.flag("optimizer.fused")?, each) {
        (Some(found), _) if found.value => out.put("optimizer.implementation", "fused", found.why),
        (_, Some(found)) => out.put("optimizer.implementation", "for_loop", found.why),
        _ => out.put("optimizer.implementation", "foreach", Why::code("torch's own default on CUDA")),
    }
    out.put_found("optimizer.weight_decay", settings.number("optimizer.weight_decay")?);
    let clip = settings.number("clip_grad_norm")?;
    let none = || Why::code("clip_grad_norm is null");
    out.put("optimizer.clip_grad_norm", clip.is_some(), clip.map_or_else(none, |found| found.why));
    if let Some(found) = settings.flag("optimizer_in_bwd")?.filter(|found| found.value) {
        out.put("optimizer.in_backward", true, found.why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_every_builder_are_those_of_torchtunes_own_table() {
        let text = include_str!("../../tests/frameworks/defaults/torchtune-0.6.1.json");
        let all: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        let all = all["models"].as_object().expect("it has models");
        for (name, shipped) in MODELS {
            // llama3_3 builds llama3_1's.
            let Some((_, theirs)) = all.iter().find(|(path, _)| path.ends_with(&format!(".{name}"))) else {
                assert_eq!(name, "llama3_3_70b");
                continue;
            };
            let model = shipped::named(shipped).expect("it is shipped");
            let ours = [model.width, model.layers.count(), model.heads(), model.vocab];
            let theirs = ["embed_dim", "num_layers", "num_heads", "vocab_size"].map(|key| theirs[key].as_u64());
            assert_eq!(ours.map(Some), theirs, "{name}");
        }
    }
}
