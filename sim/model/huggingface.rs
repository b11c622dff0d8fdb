//! Reads the `config.json` of a Hugging Face model into a [`ModelConfig`].
//!
//! A config names its architecture in `model_type`. Each architecture is one file in this folder, whose `read` says
//! which keys it has and what an absent key means: the default of that architecture's configuration class in
//! `transformers`, named beside each default. The five sizes without which nothing can be predicted (width, layers,
//! heads, feed-forward width, vocabulary) are never taken from a default, except where the architecture defines one
//! from another (four times the width in GPT-2).
//!
//! A key nobody asks for is an error, unless a list says why it costs a training step nothing (`ignored.rs`); one that another
//! architecture reads stands in [`ModelConfig::notes`].
//!
//! To add an architecture: a file with a `read`, and a line in [`ARCHITECTURES`]. To ship a model: a file in
//! `scenarios/models/`, and a line in [`shipped`](mod@shipped).

mod bloom;
mod decoder;
mod deepseek;
mod described;
mod dropout;
mod error;
mod experts;
mod falcon;
mod fits;
mod gemma;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod ignored;
pub mod inline;
mod keys;
mod limits;
mod llama;
mod llama4;
mod mamba2;
mod maxtext;
pub mod megatron;
mod mistral;
mod mixers;
mod mixtral;
mod mpt;
mod nemotron;
mod nemotron_h;
mod olmo2;
mod opt;
mod phi3;
mod qwen;
mod qwen3_next;
mod refuse;
pub mod shipped;
mod smollm3;
#[cfg(test)]
mod tests;
mod window;

use std::path::Path;

use serde_json::Value;

use decoder::Decoder;
pub use error::ModelError;
use keys::{Keys, Places};
pub use shipped::shipped;

use crate::budget;
use crate::model::{ModelConfig, Position};

/// One architecture: its `model_type`, its configuration class in `transformers`, and its reader.
struct Architecture {
    model_type: &'static str,
    class: &'static str,
    /// Whether it has experts; else keys that count experts are refused.
    sparse: bool,
    read: Read,
}

type Read = fn(&Keys<'_>) -> Result<Decoder, ModelError>;

const fn dense(model_type: &'static str, class: &'static str, read: Read) -> Architecture {
    Architecture { model_type, class, sparse: false, read }
}

const fn sparse(model_type: &'static str, class: &'static str, read: Read) -> Architecture {
    Architecture { model_type, class, sparse: true, read }
}

/// The registry.
const ARCHITECTURES: &[Architecture] = &[
    dense("llama", "LlamaConfig", llama::read),
    dense("mistral", "MistralConfig", mistral::read),
    dense("qwen2", "Qwen2Config", qwen::read_qwen2),
    dense("qwen3", "Qwen3Config", qwen::read_qwen3),
    dense("gemma", "GemmaConfig", gemma::read_gemma),
    dense("gemma2", "Gemma2Config", gemma::read_gemma2),
    dense("gemma3_text", "Gemma3TextConfig", gemma::read_gemma3),
    dense("phi3", "Phi3Config", phi3::read),
    dense("olmo2", "Olmo2Config", olmo2::read),
    dense("olmo3", "Olmo3Config", olmo2::read_olmo3),
    dense("smollm3", "SmolLM3Config", smollm3::read),
    dense("nemotron", "NemotronConfig", nemotron::read),
    dense("gpt2", "GPT2Config", gpt2::read),
    dense("gpt_neox", "GPTNeoXConfig", gpt_neox::read),
    dense("mpt", "MptConfig", mpt::read),
    dense("opt", "OPTConfig", opt::read),
    dense("bloom", "BloomConfig", bloom::read),
    dense("falcon", "FalconConfig", falcon::read),
    dense("maxtext", "MaxText's base.yml of 2023", maxtext::read),
    sparse("mixtral", "MixtralConfig", mixtral::read),
    sparse("llama4_text", "Llama4TextConfig", llama4::read),
    sparse("qwen3_moe", "Qwen3MoeConfig", qwen::read_qwen3_moe),
    sparse("deepseek_v2", "DeepseekV2Config", deepseek::read_v2),
    sparse("glm4_moe", "Glm4MoeConfig", glm4_moe::read),
    sparse("deepseek_v3", "DeepseekV3Config", deepseek::read_v3),
    dense("mamba2", "Mamba2Config", mamba2::read),
    sparse("nemotron_h", "NemotronHConfig", nemotron_h::read),
    sparse("qwen3_next", "Qwen3NextConfig", qwen3_next::read),
    sparse("granitemoehybrid", "GraniteMoeHybridConfig", granite::read),
    sparse("gpt_oss", "GptOssConfig", gpt_oss::read),
    sparse("layers", "a list of layers", described::read),
    sparse("megatron", "Megatron-LM's arguments", megatron::read),
];

/// The model whose configuration is the file at `path`.
pub fn load(path: &Path) -> Result<ModelConfig, ModelError> {
    let file = path.display().to_string();
    match crate::files::text(path) {
        Ok(text) => parse(&text, &file),
        Err(error) => Err(ModelError::Unreadable { file, reason: error.to_string() }),
    }
}

/// The value that a text is.
fn json(text: &str, file: &str) -> Result<Value, ModelError> {
    let whole = |reason| ModelError::Syntax { file: file.into(), line: 1, column: 1, reason };
    budget::json(text).map_err(whole)?;
    serde_json::from_str(text).map_err(|error| ModelError::syntax(file, &error))
}

/// The model whose configuration is `text`; `file_name` is for its name, its source and for errors.
pub fn parse(text: &str, file_name: &str) -> Result<ModelConfig, ModelError> {
    let value: Value = json(text, file_name)?;
    let Value::Object(map) = &value else {
        return Err(ModelError::NotAnObject { file: file_name.into(), found: keys::kind(&value) });
    };
    understood(&Keys::new(map, Places::Json(text), file_name), file_name)
}

/// The model that keys describe.
fn understood(keys: &Keys<'_>, file_name: &str) -> Result<ModelConfig, ModelError> {
    let written = keys.peek("model_type").and_then(Value::as_str);
    let known_type = |a: &&Architecture| Some(a.model_type) == written;
    refuse::check(keys, ARCHITECTURES.iter().find(known_type).is_some_and(|a| a.sparse))?;
    let Some(model_type) = keys.word("model_type")? else {
        return Err(keys.missing("model_type", &format!("one of {}", known()), "copy it from the model's config.json"));
    };
    let Some(architecture) = ARCHITECTURES.iter().find(|a| a.model_type == model_type) else {
        return Err(refuse::unknown(keys, model_type, known()));
    };
    let decoder = (architecture.read)(keys)?;
    let dropout = dropout::read(keys, model_type)?;
    refuse::ahead(keys, &decoder)?;
    fits::check(keys, &decoder)?;
    let mut model = decoder.model();
    model.model_type = architecture.model_type;
    model.dropout = dropout;
    if !matches!(model.position, Position::Learned { .. }) {
        model.context = keys.peek("max_position_embeddings").and_then(Value::as_u64);
    }
    model.name = name(keys, file_name)?;
    model.source = keys.word("_source")?.unwrap_or(file_name).to_string();
    model.notes.extend(refuse::notes(keys, architecture.class));
    refuse::left(keys, architecture.class)?;
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
