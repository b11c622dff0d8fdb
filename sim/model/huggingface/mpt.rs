//! MPT: one matrix for q, k and v, GELU, a head that is the embedding; linear biases on the Hub, and learned positions
//! with biases in llm-foundry's own training runs.
//!
//! Absent keys default as in `MptConfig` of `transformers`, whose model always has linear biases and no other biases.
//! Where a config says otherwise (`no_bias`, `attn_config.alibi`, `learned_pos_emb`), it is read as llm-foundry, which
//! defines these keys, builds it: `alibi` first, then `rope`, then `learned_pos_emb`. Checked against the 59 distinct
//! parameter counts of llm-foundry's benchmark table, of which the tests keep twelve (mosaicml/llm-foundry,
//! scripts/train/benchmarking/README.md).

use serde_json::Value;

use super::ModelError;
use super::decoder::{Decoder, Names, activation, plain};
use super::keys::Keys;
use super::limits::{FFN, HEADS, LENGTH, WIDTH};
use crate::model::{Activation, Gating, Norm, Position, QkNorm};

const NAMES: Names = Names {
    width: &["d_model", "hidden_size"],
    layers: &["n_layers", "num_hidden_layers"],
    heads: &["n_heads", "num_attention_heads"],
    vocab: &["vocab_size"],
};

/// Reads `model_type` `mpt`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let width = keys.size(NAMES.width, WIDTH)?;
    let ffn_config = keys.section("ffn_config")?;
    let (ffn, gating) = feed_forward(keys, ffn_config.as_ref(), width)?;
    let model = plain(keys, &NAMES, ffn)?;
    let bias = !keys.flag("no_bias", true)?; // MptConfig
    let norm = match keys.word("norm_type")?.unwrap_or("low_precision_layernorm") {
        "layernorm" | "low_precision_layernorm" => Norm::Layer { bias }, // MptConfig
        "rmsnorm" | "low_precision_rmsnorm" => Norm::Rms,
        other => {
            let expected = "one of layernorm, low_precision_layernorm, rmsnorm, low_precision_rmsnorm";
            return Err(keys.wrong("norm_type", &Value::from(other), expected));
        }
    };
    let mut model = Decoder {
        norm,
        gating,
        qkv_bias: bias,
        output_bias: bias,
        ffn_bias: bias,
        fused_qkv: true,
        position: Position::Alibi,                          // MptAttentionConfig
        tied_head: keys.flag("tie_word_embeddings", true)?, // MptConfig
        ..model
    };
    let positions = keys.size_or("max_seq_len", LENGTH, 2048, 2048)?; // MptConfig
    let learned = keys.flag("learned_pos_emb", true)?; // MptConfig
    if let Some(attention) = keys.section("attn_config")? {
        read_attention(&attention, &mut model, learned.then_some(positions))?;
    }
    Ok(model)
}

/// Feed-forward width and kind: `expansion_ratio` (4, `MptConfig`) times the width, unless `ffn_config` says more.
fn feed_forward(keys: &Keys<'_>, config: Option<&Keys<'_>>, width: u64) -> Result<(u64, Gating), ModelError> {
    let ratio = keys.number("expansion_ratio")?.unwrap_or(4.0); // MptConfig
    let product = width as f64 * ratio;
    if !(product >= 1.0 && product <= FFN.most as f64 && product.fract() == 0.0) {
        let expected = format!("a number that makes the width {width} times it {FFN}");
        return Err(keys.wrong("expansion_ratio", &Value::from(ratio), expected));
    }
    let mut ffn = product as u64;
    let mut act = Activation::Gelu; // nn.GELU without approximation
    let mut gated = false;
    if let Some(config) = config {
        ffn = config.size_if(&["ffn_hidden_size"], FFN)?.unwrap_or(ffn);
        if let Some(function) = config.section("ffn_act_fn")? {
            act = activation(&function, "name", act)?;
        }
        gated = match config.word("ffn_type")?.unwrap_or("mptmlp") {
            "mptmlp" => false,
            "mptglu" => true,
            other => {
                let (why, remedy) = ("only mptmlp and mptglu are supported", "take a dense model of these two");
                return Err(config.unsupported("ffn_type", &Value::from(other), why, remedy));
            }
        };
    }
    Ok((ffn, if gated { Gating::Gated(act) } else { Gating::Plain(act) }))
}

/// `attn_config`; `learned` is the length of the position table that stands in where there is no other position.
fn read_attention(keys: &Keys<'_>, model: &mut Decoder, learned: Option<u64>) -> Result<(), ModelError> {
    model.kv_heads = match keys.word("attn_type")?.unwrap_or("multihead_attention") {
        "multihead_attention" => model.heads, // MptAttentionConfig
        "multiquery_attention" => 1,
        "grouped_query_attention" => keys.size(&["kv_n_heads"], HEADS)?,
        other => {
            let expected = "one of multihead_attention, multiquery_attention, grouped_query_attention";
            return Err(keys.wrong("attn_type", &Value::from(other), expected));
        }
    };
    let (alibi, rope) = (keys.flag("alibi", true)?, keys.flag("rope", false)?); // MptAttentionConfig; llm-foundry
    model.position = match (alibi, rope, learned) {
        (true, _, _) => Position::Alibi,
        (false, true, _) => Position::Rope { dims: model.head_dim },
        (false, false, Some(positions)) => Position::Learned { positions },
        (false, false, None) => Position::None,
    };
    if keys.flag("qk_ln", false)? {
        model.qk_norm = Some(QkNorm::Full); // MptAttentionConfig: none
    }
    if keys.flag("prefix_lm", false)? {
        model.notes.push("\"prefix_lm\" is true: attention is modelled as causal".into());
    }
    if let Some(clip) = keys.number("clip_qkv")? {
        model.notes.push(format!("\"clip_qkv\" is {clip}: clipping is not modelled"));
    }
    Ok(())
}
