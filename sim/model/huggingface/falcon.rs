//! Falcon: attention and feed-forward side by side, one key-value head (7B) or a few (40B, 180B) (`FalconConfig`).

use super::ModelError;
use super::decoder::{Decoder, Names, activation, plain, rope};
use super::keys::Keys;
use super::limits::{FFN, HEADS, LENGTH, WIDTH};
use crate::model::{Activation, Gating, Norm, NormPlacement, Position};

const NAMES: Names = Names {
    width: &["hidden_size", "n_embed"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    vocab: &["vocab_size"],
};

/// Reads `model_type` `falcon`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let width = keys.size(NAMES.width, WIDTH)?;
    let ffn = keys.size_if(&["ffn_hidden_size"], FFN)?.unwrap_or(4 * width); // FalconConfig
    let model = plain(keys, &NAMES, ffn)?;
    let newer = keys.flag("new_decoder_architecture", false)?; // FalconConfig
    let one = keys.flag("multi_query", true)?; // FalconConfig
    let written = keys.size_if(&["num_kv_heads", "n_head_kv"], HEADS)?; // FalconConfig: the number of heads
    let parallel = keys.flag("parallel_attn", true)?; // FalconConfig
    let norms = keys.size_if(&["num_ln_in_parallel_attn"], LENGTH)?.unwrap_or(2); // FalconConfig, newer ones only
    let bias = keys.flag("bias", false)?; // FalconConfig
    let alibi = keys.flag("alibi", false)?; // FalconConfig
    Ok(Decoder {
        kv_heads: match (newer, one) {
            (true, _) => written.unwrap_or(model.heads),
            (false, true) => 1,
            (false, false) => model.heads,
        },
        norm: Norm::Layer { bias: true },
        norm_placement: match (newer, parallel) {
            (true, _) if norms == 2 => NormPlacement::Parallel,
            (true, _) | (false, true) => NormPlacement::ParallelShared,
            (false, false) => NormPlacement::Pre,
        },
        position: if alibi { Position::Alibi } else { rope(keys, model.head_dim, "partial_rotary_factor", 1.0)? },
        gating: Gating::Plain(activation(keys, "activation", Activation::Gelu)?), // FalconConfig
        qkv_bias: bias,
        output_bias: bias,
        ffn_bias: bias,
        fused_qkv: true,
        tied_head: keys.flag("tie_word_embeddings", true)?, // FalconConfig, from PretrainedConfig
        ..model
    })
}
