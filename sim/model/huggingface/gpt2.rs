//! GPT-2, and with other sizes GPT-3 as Megatron trains it: learned positions, LayerNorm, GELU, biases everywhere, and
//! a head that is the embedding (`GPT2Config`).

use super::ModelError;
use super::decoder::{Decoder, Names, activation, plain};
use super::keys::Keys;
use super::limits::{FFN, LENGTH, WIDTH};
use crate::model::{Activation, Gating, Norm, Position};

const NAMES: Names = Names {
    width: &["n_embd", "hidden_size"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    vocab: &["vocab_size"],
};

/// Reads `model_type` `gpt2`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let width = keys.size(NAMES.width, WIDTH)?;
    let ffn = keys.size_if(&["n_inner"], FFN)?.unwrap_or(4 * width); // GPT2Config: None is four times the width
    let positions = keys.size_if(&["n_positions", "max_position_embeddings"], LENGTH)?.unwrap_or(1024); // GPT2Config
    let model = plain(keys, &NAMES, ffn)?;
    Ok(Decoder {
        norm: Norm::Layer { bias: true },
        position: Position::Learned { positions },
        gating: Gating::Plain(activation(keys, "activation_function", Activation::GeluNew)?), // GPT2Config
        qkv_bias: true,
        output_bias: true,
        ffn_bias: true,
        fused_qkv: true,
        tied_head: keys.flag("tie_word_embeddings", true)?, // GPT2Config, from PretrainedConfig
        ..model
    })
}
