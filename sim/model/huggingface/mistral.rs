//! Mistral: Llama with a sliding window in every block (`MistralConfig`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
use super::limits::LENGTH;
use crate::model::{Activation, Gating};

/// Reads `model_type` `mistral`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(8), None, false)?; // MistralConfig: 8 key-value heads, own head
    let written = keys.size_if(&["sliding_window"], LENGTH)?;
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // MistralConfig
        // MistralConfig: 4096 if absent; null switches the window off.
        sliding_window: written.or(if keys.given("sliding_window") { None } else { Some(4096) }),
        ..model
    })
}
