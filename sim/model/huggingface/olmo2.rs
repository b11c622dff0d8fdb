//! OLMo 2: Llama with norms after each part instead of before, and norms on queries and keys (`Olmo2Config`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
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
