//! Probabilities of dropout, by the keys of each class and the defaults of its configuration.

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;
use crate::model::Dropout;
use crate::units::Finite;

/// Where a class reads a probability, and what it is where no key says so.
type Key = Option<(&'static str, f64)>;

/// A class's probabilities on the embedding, on attention and on the residual stream.
type Class = (&'static [&'static str], [Key; 3]);

const CLASSES: [Class; 7] = [
    (&["gpt2"], [Some(("embd_pdrop", 0.1)), Some(("attn_pdrop", 0.1)), Some(("resid_pdrop", 0.1))]), // GPT2Config
    (&["opt"], [None, Some(("attention_dropout", 0.0)), Some(("dropout", 0.1))]),                    // OPTConfig
    (
        &["gpt_neox"],
        [Some(("hidden_dropout", 0.0)), Some(("attention_dropout", 0.0)), Some(("hidden_dropout", 0.0))], // GPTNeoXConfig
    ),
    (&["bloom", "falcon"], [None, Some(("attention_dropout", 0.0)), Some(("hidden_dropout", 0.0))]), // BloomConfig, FalconConfig
    (&["mpt"], [Some(("emb_pdrop", 0.0)), None, Some(("resid_pdrop", 0.0))]),                        // MptConfig
    (&["phi3"], [Some(("embd_pdrop", 0.0)), Some(("attention_dropout", 0.0)), Some(("resid_pdrop", 0.0))]), // Phi3Config
    (
        &[
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "olmo2",
            "olmo3",
            "smollm3",
            "glm4_moe",
            "nemotron",
            "mixtral",
            "llama4_text",
            "qwen3_moe",
        ],
        [None, Some(("attention_dropout", 0.0)), None], // LlamaConfig and its descendants
    ),
];

/// Reads the probabilities of a `model_type`.
pub(super) fn read(keys: &Keys<'_>, model_type: &str) -> Result<Dropout, ModelError> {
    let Some((_, class)) = CLASSES.iter().find(|(names, _)| names.contains(&model_type)) else {
        return Ok(Dropout::default());
    };
    let read = |key: Key| {
        let Some((name, default)) = key else { return Ok(Finite::default()) };
        let probability = keys.number(name)?.unwrap_or(default);
        match (0.0..1.0).contains(&probability) {
            true => Ok(Finite::nearest(probability)),
            false => Err(keys.wrong(name, &Value::from(probability), "a probability, from 0 to below 1")),
        }
    };
    let [embedding, attention, residual] = *class;
    Ok(Dropout { embedding: read(embedding)?, attention: read(attention)?, residual: read(residual)? })
}
