//! OPT: GPT-2 with ReLU, separate q, k and v, and a position table two rows longer than its context (`OPTConfig`).

use serde_json::Value;

use super::ModelError;
use super::decoder::{Decoder, Names, activation, plain};
use super::keys::Keys;
use super::limits::{FFN, LENGTH, WIDTH};
use crate::model::{Activation, Gating, Norm, Position};

const NAMES: Names = Names {
    width: &["hidden_size", "d_model"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    vocab: &["vocab_size"],
};

/// Rows of the position table before the first position (`OPTLearnedPositionalEmbedding`).
const POSITION_OFFSET: u64 = 2;

/// Reads `model_type` `opt`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = plain(keys, &NAMES, keys.size(&["ffn_dim"], FFN)?)?;
    let projection = keys.size_if(&["word_embed_proj_dim"], WIDTH)?.unwrap_or(model.width); // OPTConfig
    if projection != model.width {
        return Err(keys.unsupported(
            "word_embed_proj_dim",
            &Value::from(projection),
            &format!("an embedding narrower than the model's width {} is not supported", model.width),
            "take another size of this model",
        ));
    }
    for key in ["do_layer_norm_before", "layer_norm_elementwise_affine"] {
        if !keys.flag(key, true)? {
            let why = "only norms before each part, with weights, are supported";
            return Err(keys.unsupported(key, &Value::from(false), why, "take another size of this model"));
        }
    }
    let positions = keys.size_or("max_position_embeddings", LENGTH, 2048, 2048)? + POSITION_OFFSET; // OPTConfig
    let bias = keys.flag("enable_bias", true)?; // OPTConfig
    Ok(Decoder {
        norm: Norm::Layer { bias: true },
        final_norm: !keys.flag("_remove_final_layer_norm", false)?, // OPTConfig
        position: Position::Learned { positions },
        gating: Gating::Plain(activation(keys, "activation_function", Activation::Relu)?), // OPTConfig
        qkv_bias: bias,
        output_bias: bias,
        ffn_bias: bias,
        tied_head: keys.flag("tie_word_embeddings", true)?, // OPTConfig, from PretrainedConfig
        ..model
    })
}
