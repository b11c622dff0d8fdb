//! The models that ship with the program: every file of `scenarios/models/`, by its stem.
//!
//! The files are compiled in, so that a name works where there is no checkout. Each says in `_source` whence its
//! numbers come. To add one: a file there, and its stem here.

use super::{ModelError, parse};
use crate::model::ModelConfig;

/// Pairs each name with the text of its file.
macro_rules! models {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../../../scenarios/models/", $name, ".json")))),*]
    };
}

/// The table: name, `config.json`.
const SHIPPED: &[(&str, &str)] = models![
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "code-llama-34b",
    "tinyllama-1.1b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "internlm-7b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.2",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "qwen2.5-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "gemma-2b",
    "gemma-7b",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-3-1b",
    "gemma-3-12b",
    "phi-3-mini",
    "olmo-2-7b",
    "olmo-3-7b",
    "olmo-3-32b",
    "smollm3-3b",
    "glm-4.5-air",
    "glm-4.5",
    "nemotron-3-8b",
    "nemotron-3-22b",
    "nemotron-4-15b",
    "nemotron-4-340b",
    "nemotron-h-8b",
    "nemotron-h-56b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-3-super-120b-a12b",
    "mamba2-2.7b",
    "granite-4.0-h-small",
    "qwen3-next-80b-a3b",
    "maxtext-32b",
    "maxtext-64b",
    "maxtext-22b",
    "maxtext-52b",
    "maxtext-llama-32b",
    "maxtext-llama-64b",
    "maxtext-llama-128b",
    "maxtext-llama-256b",
    "maxtext-llama-512b",
    "maxtext-llama-1024b",
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gpt2-124m-padded",
    "gpt2-350m-padded",
    "gpt2-774m-padded",
    "gpt2-1558m-padded",
    "gpt3-125m-padded",
    "gpt3-5b-nemo",
    "gpt3-20b-nemo",
    "gpt3-175b-nemo",
    "gpt-megatron-1.7b",
    "gpt-megatron-3.6b",
    "gpt-megatron-7.5b",
    "gpt-megatron-18.4b",
    "gpt-megatron-39.1b",
    "gpt-megatron-76.1b",
    "gpt-megatron-145.6b",
    "gpt-megatron-310.1b",
    "gpt-megatron-529.6b",
    "gpt-megatron-1008b",
    "gpt-megatron-22b",
    "gpt-megatron-175b",
    "gpt-neox-20b",
    "stablelm-base-alpha-3b",
    "mpt-7b",
    "mpt-30b",
    "llm-foundry-mpt-125m",
    "llm-foundry-mpt-350m",
    "llm-foundry-mpt-760m",
    "llm-foundry-mpt-1b",
    "llm-foundry-mpt-3b",
    "llm-foundry-mpt-7b",
    "llm-foundry-mpt-13b",
    "llm-foundry-mpt-30b",
    "llm-foundry-mpt-70b",
    "bloom-176b",
    "falcon-7b",
    "opt-125m",
    "opt-1.3b",
    "opt-6.7b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "kimi-k2",
    "gpt-oss-20b",
    "gpt-oss-120b",
];

/// The `config.json` of the shipped model `name`.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The names of all shipped models, families together.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(name, _)| *name)
}

/// The shipped model `name`.
pub fn named(name: &str) -> Result<ModelConfig, ModelError> {
    let text = shipped(name).ok_or_else(|| unknown(name))?;
    parse(text, &format!("scenarios/models/{name}.json"))
}

/// The error for a name that no shipped model has.
pub(super) fn unknown(name: &str) -> ModelError {
    let known: Vec<&str> = names().collect();
    ModelError::NotShipped { name: name.chars().take(60).collect(), known: known.join(", ") }
}
