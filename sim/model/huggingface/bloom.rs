//! BLOOM: linear biases instead of positions, a norm on the embedding, biases everywhere, and a head that is the
//! embedding (`BloomConfig`).

use super::ModelError;
use super::decoder::{Decoder, Names, plain};
use super::keys::Keys;
use super::limits::WIDTH;
use crate::model::{Activation, Gating, Norm, Position};

const NAMES: Names = Names {
    width: &["hidden_size", "n_embed"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    vocab: &["vocab_size"],
};

/// Reads `model_type` `bloom`. The feed-forward is always four times the width; `n_inner` is not read by the model.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let width = keys.size(NAMES.width, WIDTH)?;
    let model = plain(keys, &NAMES, 4 * width)?;
    Ok(Decoder {
        norm: Norm::Layer { bias: true },
        embedding_norm: true,
        position: Position::Alibi,
        gating: Gating::Plain(Activation::GeluTanh), // no key: BLOOM's own GELU is the tanh form
        qkv_bias: true,
        output_bias: true,
        ffn_bias: true,
        fused_qkv: true,
        tied_head: keys.flag("tie_word_embeddings", true)?, // BloomConfig, from PretrainedConfig
        ..model
    })
}
