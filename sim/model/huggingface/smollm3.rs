//! SmolLM3: Llama whose every fourth layer has no rotary positions (`SmolLM3Config`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
use crate::model::{Activation, Gating};

/// Reads `model_type` `smollm3`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(4), None, true)?; // SmolLM3Config: 4 key-value heads, head tied
    let attention_bias = keys.flag("attention_bias", false)?; // SmolLM3Config
    let window = keys.flag("use_sliding_window", false)?; // SmolLM3Config
    if window {
        let why = "windows of SmolLM3 are not described";
        return Err(keys.unsupported("use_sliding_window", &true.into(), why, "set it to false"));
    }
    ["sliding_window", "layer_types", "no_rope_layers", "no_rope_layer_interval"].iter().for_each(|key| keys.ask(key));
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // SmolLM3Config
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        ffn_bias: keys.flag("mlp_bias", false)?, // SmolLM3Config
        notes: vec!["layers without rotary positions (no_rope_layers) are simulated with them".to_owned()],
        ..model
    })
}
