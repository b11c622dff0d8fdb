//! Phi-3: Llama with one matrix for q, k and v (`Phi3Config`). Its gate and up projections are one matrix too, which
//! is the same work and the same number of parameters as two.

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
use super::limits::LENGTH;
use crate::model::{Activation, Gating};

/// Reads `model_type` `phi3`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, None, None, false)?; // Phi3Config: as many key-value heads as heads, own head
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Phi3Config
        fused_qkv: true,
        sliding_window: keys.size_if(&["sliding_window"], LENGTH)?, // Phi3Config: none
        ..model
    })
}
