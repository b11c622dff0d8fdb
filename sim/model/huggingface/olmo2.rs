//! OLMo 2 and 3: Llama with norms after each part instead of before, and norms on queries and keys (`Olmo2Config`); in OLMo 3 three layers
//! of four see a window (`Olmo3Config`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
use super::limits::LENGTH;
use super::window::{Pattern, layer_types, place};
use crate::model::{Activation, Gating, NormPlacement, QkNorm};

/// Reads `model_type` `olmo2`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, None, None, false)?; // Olmo2Config: as many key-value heads as heads, own head
    let attention_bias = keys.flag("attention_bias", false)?; // Olmo2Config
    Ok(Decoder {
        norm_placement: NormPlacement::Post,
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Olmo2Config
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        qk_norm: Some(QkNorm::Full),
        ..model
    })
}

/// Reads `model_type` `olmo3`.
pub(super) fn read_olmo3(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = read(keys)?;
    let window = keys.size_or("sliding_window", LENGTH, 4096, 4096)?; // Olmo3Config
    let pattern = layer_types(keys, model.layers)?.unwrap_or(Pattern::AllButEvery(4)); // Olmo3Config
    let (sliding_window, global_every) = place(Some(window), pattern);
    Ok(Decoder { sliding_window, global_every, ..model })
}
