//! Reads the `config.json` of a Hugging Face model into a [`ModelConfig`].
//!
//! A config names its architecture in `model_type`. Each architecture is one file in this folder, whose `read` says
//! which keys it has and what an absent key means: the default of that architecture's configuration class in
//! `transformers`, named beside each default. The five sizes without which nothing can be predicted (width, layers,
//! heads, feed-forward width, vocabulary) are never taken from a default, except where the architecture defines one
//! from another (four times the width in GPT-2).
//!
//! Keys nobody asks for are not errors, as these files carry many; those that would change the model are errors
//! (mixtures of experts, encoders, images) or stand in [`ModelConfig::notes`].
//!
//! To add an architecture: a file with a `read`, and a line in [`ARCHITECTURES`]. To ship a model: a file in
//! `scenarios/models/`, and a line in [`shipped`](mod@shipped).

mod bloom;
mod decoder;
mod error;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod keys;
mod limits;
mod llama;
mod mistral;
mod mpt;
mod nemotron;
mod olmo2;
mod opt;
mod phi3;
mod qwen;
mod refuse;
pub mod shipped;
#[cfg(test)]
mod tests;
mod window;

use std::path::Path;

use serde_json::Value;

pub use error::ModelError;
use keys::Keys;
pub use shipped::shipped;

use super::ModelConfig;

/// One architecture: its `model_type`, its configuration class in `transformers`, and its reader.
struct Architecture {
    model_type: &'static str,
    class: &'static str,
    read: fn(&Keys<'_>) -> Result<ModelConfig, ModelError>,
}

/// The registry.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { model_type: "llama", class: "LlamaConfig", read: llama::read },
    Architecture { model_type: "mistral", class: "MistralConfig", read: mistral::read },
    Architecture { model_type: "qwen2", class: "Qwen2Config", read: qwen::read_qwen2 },
    Architecture { model_type: "qwen3", class: "Qwen3Config", read: qwen::read_qwen3 },
    Architecture { model_type: "gemma", class: "GemmaConfig", read: gemma::read_gemma },
    Architecture { model_type: "gemma2", class: "Gemma2Config", read: gemma::read_gemma2 },
    Architecture { model_type: "gemma3_text", class: "Gemma3TextConfig", read: gemma::read_gemma3 },
    Architecture { model_type: "phi3", class: "Phi3Config", read: phi3::read },
    Architecture { model_type: "olmo2", class: "Olmo2Config", read: olmo2::read },
    Architecture { model_type: "nemotron", class: "NemotronConfig", read: nemotron::read },
    Architecture { model_type: "gpt2", class: "GPT2Config", read: gpt2::read },
    Architecture { model_type: "gpt_neox", class: "GPTNeoXConfig", read: gpt_neox::read },
    Architecture { model_type: "mpt", class: "MptConfig", read: mpt::read },
    Architecture { model_type: "opt", class: "OPTConfig", read: opt::read },
    Architecture { model_type: "bloom", class: "BloomConfig", read: bloom::read },
    Architecture { model_type: "falcon", class: "FalconConfig", read: falcon::read },
];

/// The model whose configuration is the file at `path`.
pub fn load(path: &Path) -> Result<ModelConfig, ModelError> {
    let file = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, &file),
        Err(error) => Err(ModelError::Unreadable { file, reason: error.to_string() }),
    }
}

/// The model whose configuration is `text`; `file_name` is for its name, its source and for errors.
pub fn parse(text: &str, file_name: &str) -> Result<ModelConfig, ModelError> {
    let value: Value = serde_json::from_str(text).map_err(|error| ModelError::syntax(file_name, &error))?;
    let Value::Object(map) = &value else {
        return Err(ModelError::NotAnObject { file: file_name.into(), found: keys::kind(&value) });
    };
    let keys = Keys::new(map, text, file_name);
    refuse::check(&keys)?;
    let Some(model_type) = keys.word("model_type")? else {
        return Err(keys.missing("model_type", &format!("one of {}", known()), "copy it from the model's config.json"));
    };
    let Some(architecture) = ARCHITECTURES.iter().find(|a| a.model_type == model_type) else {
        return Err(refuse::unknown(&keys, model_type, known()));
    };
    let mut model = (architecture.read)(&keys)?;
    limits::check(&keys, &model)?;
    model.name = name(&keys, file_name)?;
    model.source = keys.word("_source")?.unwrap_or(file_name).to_string();
    model.notes.extend(refuse::notes(&keys, architecture.class));
    Ok(model)
}

/// The `model_type`s that can be read, for messages.
fn known() -> String {
    let names: Vec<&str> = ARCHITECTURES.iter().map(|a| a.model_type).collect();
    names.join(", ")
}

/// The file's stem; of a `config.json`, the end of `_name_or_path` or else the folder's name.
fn name(keys: &Keys<'_>, file_name: &str) -> Result<String, ModelError> {
    let path = Path::new(file_name);
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or(file_name);
    if stem != "config" {
        return Ok(stem.to_string());
    }
    let written = keys.word("_name_or_path")?.and_then(|p| p.rsplit('/').find(|part| !part.is_empty()));
    let folder = path.parent().and_then(Path::file_name).and_then(|s| s.to_str());
    Ok(written.or(folder).unwrap_or(stem).to_string())
}
