//! NeMo's and Megatron-Bridge's YAML, and the arguments that a Megatron checkpoint holds: their keys become Megatron-LM's arguments.
//!
//! `tables/nemo.toml` names what differs; what it does not name is Megatron-Core's own key once its section is gone.
//! Source: NVIDIA/NeMo 1.x, `examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`; NVIDIA-NeMo/Megatron-Bridge,
//! `src/megatron/bridge/training/config.py`; NVIDIA/Megatron-LM, `megatron/training/checkpointing.py`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::bridge;
use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::megatron;
use super::settings::Raw;
use super::syntax::{json, overrides, yaml};
use super::table::{Table, matches};
use super::why::Why;
use crate::tables;

/// Reads NeMo's configurations.
pub const IMPORTER: Importer = Importer {
    name: "nemo",
    reads: "YAML of NeMo and Megatron-Bridge, and a Megatron checkpoint's args as JSON or YAML",
    marks: "num_layers, hidden_size and num_attention_heads, as YAML or JSON",
    sniff,
    read,
    tables: None,
};

/// What other tools call Megatron-LM's arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    /// Sections whose keys are Megatron-Core's own.
    sections: Vec<String>,
    /// Other names.
    renamed: BTreeMap<String, String>,
    /// Flags of the opposite sense, once their section is gone.
    negated: BTreeMap<String, String>,
    /// Keys without effect on time or memory.
    idle: Vec<String>,
}

static NAMES: LazyLock<Names> =
    LazyLock::new(|| tables::read(include_str!("tables/nemo.toml")).expect("a test reads every table"));

/// Megatron-LM's table, with what has no effect here.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = megatron::TABLE.clone();
    table.framework = "Megatron-LM's arguments, as NeMo names them:".to_owned();
    table.idle.extend(NAMES.idle.iter().cloned());
    table
});

fn sniff(text: &str) -> bool {
    if bridge::is(text) {
        return true;
    }
    let has = |name: &str| {
        let starts = |line: &str| line.trim_start().trim_start_matches('"').starts_with(name);
        text.lines().any(|line| starts(line) && line.contains(':'))
    };
    let sizes = has("num_layers") && has("hidden_size") && has("num_attention_heads");
    sizes
        && megatron::arguments::table(text).is_none()
        && !text.contains("--num-layers")
        && !has("model_type")
        && !text.contains("_component_: torchtune")
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = match request.text.trim_start().starts_with('{') {
        true => json::read(request.file, request.text)?,
        false => yaml::read(request.file, request.text)?,
    };
    raw.extend(overrides::read(request.overrides));
    let mut notes = vec![];
    if bridge::is(request.text) {
        if let Some((what, remedy, found)) = bridge::refused(&raw) {
            let line = found.line.map_or(String::new(), |line| format!(":{line}"));
            return Err(ImportError::Unsupported {
                place: format!("{}{line}: {} = {}", request.file, found.key, found.value),
                what: what.to_owned(),
                remedy: remedy.to_owned(),
            });
        }
        (raw, notes) = bridge::started(raw);
    }
    let whole: BTreeMap<String, Value> = raw.iter().map(|raw| (raw.key.clone(), raw.value.clone())).collect();
    let arguments = raw.into_iter().flat_map(|raw| arguments(raw, &whole)).collect();
    let mut out = megatron::understood(request, &TABLE, IMPORTER.name, arguments, vec![])?;
    notes.into_iter().for_each(|note| out.note(note));
    if bridge::is(request.text) {
        let how = "training/gpt_step.py, get_batch_from_iterator: no mask is asked of the dataset, whatever the file says of it";
        out.put("megatron.get_batch", "each_rank", Why::code(how));
    }
    let keeps = out.get("megatron.mtp_num_layers").is_some()
        || out.get("megatron.cross_entropy_fusion_impl").is_some_and(|kernels| kernels.as_str() == Some("te"));
    if keeps && bridge::is(request.text) && request.text.contains("cuda_graph_modules") {
        out.put(
            "megatron.core_version",
            "0.19.2",
            Why::code("cuda_graph_modules, a field of newer releases than 0.16"),
        );
    }
    Ok(out)
}

/// A value that is another key's, `${model.encoder_seq_length}`.
fn referred(value: Value, whole: &BTreeMap<String, Value>) -> Value {
    let path = value.as_str().and_then(|text| text.strip_prefix("${")?.strip_suffix('}'));
    path.and_then(|path| whole.get(path)).cloned().unwrap_or(value)
}

/// The argument that a key is, or the key itself where it is none.
fn name(key: &str) -> (String, bool) {
    if let Some(name) = NAMES.renamed.get(key) {
        return (name.clone(), false);
    }
    if NAMES.idle.iter().any(|pattern| matches(pattern, key)) {
        return (key.to_owned(), false);
    }
    let own = NAMES.sections.iter().filter_map(|section| key.strip_prefix(section.as_str())?.strip_prefix('.'));
    let own = own.min_by_key(|rest| rest.len()).filter(|rest| !rest.contains('.')).unwrap_or(key);
    match NAMES.negated.get(own) {
        Some(name) => (name.clone(), true),
        None => (own.to_owned(), false),
    }
}

/// Arguments that a key stands for.
fn arguments(raw: Raw, whole: &BTreeMap<String, Value>) -> Vec<Raw> {
    let value = referred(raw.value.clone(), whole);
    let (key, negated) = name(&raw.key);
    let one = |key: &str, value: Value| vec![Raw { key: key.to_owned(), value, line: raw.line }];
    if negated {
        return one(&key, value.as_bool().map_or(value, |flag| Value::Bool(!flag)));
    }
    let word = value.as_str().map(str::to_lowercase);
    match (key.as_str(), word.as_deref()) {
        ("precision" | "mixed_precision" | "precision_config", Some(word)) => {
            let kind = ["bf16", "fp16"].into_iter().find(|kind| word.contains(kind));
            let kind = kind.or((word == "16" || word == "16-mixed").then_some("fp16"));
            kind.map_or_else(|| one(&key, value.clone()), |kind| one(kind, Value::Bool(true)))
        }
        ("normalization", Some("rmsnorm")) => one(&key, Value::from("RMSNorm")),
        ("normalization", Some(word)) if word.starts_with("layernorm") => one(&key, Value::from("LayerNorm")),
        ("activation", Some(word)) if word.ends_with("swiglu") => one("swiglu", Value::Bool(true)),
        ("activation", Some("squared-relu" | "squared_relu")) => one("squared_relu", Value::Bool(true)),
        ("activation", Some(_)) => one("swiglu", Value::Bool(false)),
        ("bias_activation_fusion", _) => {
            let both = ["bias_gelu_fusion", "bias_swiglu_fusion"];
            both.into_iter().flat_map(|key| one(key, value.clone())).collect()
        }
        ("transformer_engine", _) => match value.as_bool() {
            Some(true) => one("transformer_impl", Value::from("transformer_engine")),
            Some(false) => one("transformer_impl", Value::from("local")),
            None => one(&key, value),
        },
        ("fp8", _) if value == Value::Bool(false) => one("fp8", Value::Null),
        ("fp8", _) if value == Value::Bool(true) => one("fp8", Value::from("hybrid")),
        ("optimizer_name", Some(word)) if word.contains("adam") => {
            let mut all = one("optimizer", Value::from("adam"));
            if word.contains("distributed") {
                all.extend(one("use_distributed_optimizer", Value::Bool(true)));
            }
            all
        }
        ("num_query_groups", _)
            if !value.is_null() && !whole.keys().any(|key| key.ends_with("group_query_attention")) =>
        {
            let mut all = one("num_query_groups", value);
            all.extend(one("group_query_attention", Value::Bool(true)));
            all
        }
        _ => one(&key, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(key: &str, value: Value) -> String {
        let raw = Raw { key: key.to_owned(), value, line: Some(1) };
        let whole = BTreeMap::from([("model.encoder_seq_length".to_owned(), Value::from(2048))]);
        let all = arguments(raw, &whole).into_iter().map(|raw| format!("{}={}", raw.key, raw.value));
        all.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn keys_become_arguments_by_name_by_sense_or_by_value() {
        for (key, value, expected) in [
            ("model.num_layers", Value::from(32), "num_layers=32"),
            ("num_layers", Value::from(32), "num_layers=32"),
            ("args.num_layers", Value::from(32), "num_layers=32"),
            ("model.data.seq_length", Value::from("${model.encoder_seq_length}"), "model.data.seq_length=2048"),
            ("train.micro_batch_size", Value::from(2), "micro_batch_size=2"),
            ("ddp.grad_reduce_in_fp32", Value::from(true), "accumulate_allreduce_grads_in_fp32=true"),
            (
                "model.share_embeddings_and_output_weights",
                Value::from(false),
                "untie_embeddings_and_output_weights=true",
            ),
            ("trainer.precision", Value::from("bf16-mixed"), "bf16=true"),
            ("model.activation", Value::from("fast-swiglu"), "swiglu=true"),
            (
                "model.optim.name",
                Value::from("distributed_fused_adam"),
                "optimizer=\"adam\" use_distributed_optimizer=true",
            ),
            ("model.num_query_groups", Value::from(8), "num_query_groups=8 group_query_attention=true"),
            ("model.transformer_engine", Value::from(false), "transformer_impl=\"local\""),
        ] {
            assert_eq!(shown(key, value), expected, "{key}");
        }
    }
}
