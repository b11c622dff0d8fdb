//! Nemotron 3 and 4: LayerNorm with bias, squared ReLU without a gate, rotary positions on half of each head
//! (`NemotronConfig`). Nemotron-H and the Llama-based Nemotrons are other architectures.

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like, rope};
use super::keys::Keys;
use crate::model::{Activation, Gating, Norm};

/// Reads `model_type` `nemotron`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, None, None, false)?; // NemotronConfig: as many key-value heads as heads, own head
    let attention_bias = keys.flag("attention_bias", false)?; // NemotronConfig
    Ok(Decoder {
        norm: Norm::Layer { bias: true },
        position: rope(keys, model.head_dim, "partial_rotary_factor", 0.5)?, // NemotronConfig
        gating: Gating::Plain(activation(keys, "hidden_act", Activation::ReluSquared)?), // NemotronConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        ffn_bias: keys.flag("mlp_bias", false)?, // NemotronConfig
        ..model
    })
}
