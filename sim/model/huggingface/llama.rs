//! Llama: RMS norms, rotary positions, grouped queries, SiLU-gated feed-forward (`LlamaConfig`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
use crate::model::{Activation, Gating};

/// Reads `model_type` `llama`. `LlamaConfig`: key-value heads default to the heads, `head_dim` to width / heads.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, None, None, false)?; // LlamaConfig.tie_word_embeddings
    let attention_bias = keys.flag("attention_bias", false)?; // LlamaConfig: q, k, v and output
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // LlamaConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        ffn_bias: keys.flag("mlp_bias", false)?, // LlamaConfig
        ..model
    })
}
