//! GPT-NeoX, Pythia and StableLM-alpha: attention and feed-forward side by side, each with its own LayerNorm, and
//! rotary positions on a quarter of each head (`GPTNeoXConfig`).

use super::ModelError;
use super::decoder::{COMMON, Decoder, activation, plain, rope};
use super::keys::Keys;
use super::limits::FFN;
use crate::model::{Activation, Gating, Norm, NormPlacement};

/// Reads `model_type` `gpt_neox`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = plain(keys, &COMMON, keys.size(&["intermediate_size"], FFN)?)?;
    let parallel = keys.flag("use_parallel_residual", true)?; // GPTNeoXConfig
    let attention_bias = keys.flag("attention_bias", true)?; // GPTNeoXConfig
    Ok(Decoder {
        norm: Norm::Layer { bias: true },
        norm_placement: if parallel { NormPlacement::Parallel } else { NormPlacement::Pre },
        position: rope(keys, model.head_dim, "rotary_pct", 0.25)?, // GPTNeoXConfig
        gating: Gating::Plain(activation(keys, "hidden_act", Activation::Gelu)?), // GPTNeoXConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        ffn_bias: true,
        fused_qkv: true,
        tied_head: keys.flag("tie_word_embeddings", false)?, // GPTNeoXConfig
        ..model
    })
}
