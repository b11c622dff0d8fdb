//! A Hugging Face `config.json`: a small scenario of that model, whose keys the command line sets.

use std::sync::LazyLock;

use toml::Value;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::{Raw, Settings};
use super::syntax::{json_value, overrides};
use super::table::Table;
use super::why::Why;
use crate::model::ModelConfig;
use crate::model::huggingface;
use crate::tables;

/// Reads a model's `config.json`.
pub const IMPORTER: Importer = Importer {
    name: "hf",
    reads: "a Hugging Face config.json; overrides are keys of a scenario",
    marks: "a JSON with model_type",
    sniff,
    read,
    tables: None,
};

/// The sequence of a scenario whose user names none, unless the model is for less.
const SEQUENCE: u64 = 4096;

/// A model is the same in every release.
const ANY_RELEASE: &str = "any release";

/// Keys that are the model's own reader's.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let text = "framework = \"transformers\"\nversions = [\"any release\"]\nidle = [\"*\"]\n[defaults]\n";
    tables::read(text).expect("it is a table")
});

fn sniff(text: &str) -> bool {
    let Some(value) = json_value(text) else { return false };
    value.get("model_type").is_some_and(serde_json::Value::is_string)
}

/// The model of a `config.json`, or why it is none.
pub fn model(text: &str, file: &str) -> Result<ModelConfig, ImportError> {
    huggingface::parse(text, file).map_err(|why| ImportError::Model(Box::new(why)))
}

/// Sequence of a scenario whose user names none.
pub fn put_sequence(out: &mut Imported, model: &ModelConfig, how: &str) {
    let sequence = model.context.map_or(SEQUENCE, |context| context.min(SEQUENCE));
    out.put("batch.sequence", i64::try_from(sequence).unwrap_or(i64::MAX), Why::code(format!("assumed: {how}")));
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let model = model(request.text, request.file)?;
    let settings = Settings::new(request.file, &TABLE, vec![], request.version.map(|_| ANY_RELEASE));
    let mut out = Imported::of(&settings);
    "its model_type names it".clone_into(&mut out.basis);
    let assumed = |key: &str| Why::code(format!("assumed: add {key}=… to choose another"));
    out.put("description", model.name.as_str(), Why::code("the model's name"));
    out.put("runtime", "fsdp2", assumed("runtime"));
    machine::put(&mut out, request, IMPORTER.name, Kind::Gpus)?;
    out.put("model.huggingface", request.file, Why::code("the configuration itself"));
    put_sequence(&mut out, &model, "add batch.sequence=N to choose another");
    out.put("batch.micro", 1, assumed("batch.micro"));
    out.put("mesh.tp", 1, Why::code("assumed: no axis but FSDP's; add mesh.tp=N for tensor parallelism"));
    for Raw { key, value, .. } in overrides::read(request.overrides) {
        let why = Why::Stated { key: key.clone(), place: "the command line".to_owned() };
        let value = written(&value).ok_or_else(|| ImportError::Value {
            place: "the command line".to_owned(),
            key: key.clone(),
            found: value.to_string(),
            expected: "a value of TOML".to_owned(),
            remedy: format!("{key}=VALUE"),
        })?;
        out.put(&key, value, why);
    }
    Ok(out.finish(&settings))
}

/// A value of the command line as TOML writes it.
fn written(value: &serde_json::Value) -> Option<Value> {
    use serde_json::Value as Json;
    match value {
        Json::Bool(flag) => Some(Value::Boolean(*flag)),
        Json::Number(number) => number.as_i64().map(Value::Integer).or_else(|| number.as_f64().map(Value::Float)),
        Json::String(text) => Some(Value::String(text.clone())),
        Json::Null => Some(Value::String("none".to_owned())),
        Json::Array(_) | Json::Object(_) => None,
    }
}
