//! A model as Megatron-LM's arguments describe it: `model_type` `megatron`, and the names of arguments as keys (NVIDIA/Megatron-LM
//! core_v0.16.1: `megatron/training/arguments.py`, `core/transformer/transformer_config.py`; defaults are theirs).
//!
//! Other architectures fix norm, activation and positions; here each is chosen by itself.

pub mod pattern;
mod routed;

use serde_json::Value;

use super::ModelError;
use super::decoder::{Decoder, Names, rope, sized};
use super::keys::Keys;
use super::limits::{FFN, HEAD_DIM, HEADS, LENGTH, WIDTH};
use crate::model::latent::LatentAttention;
use crate::model::{Activation, Gating, Norm, Position, QkNorm};

const NAMES: Names =
    Names { width: &["hidden_size"], layers: &["num_layers"], heads: &["num_attention_heads"], vocab: &["vocab_size"] };

/// Reads `model_type` `megatron`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let gating = gating(keys)?;
    let ffn = feed_forward(keys, gating)?;
    let latent = latent(keys)?;
    let channels = keys.size_if(&["kv_channels"], HEAD_DIM)?;
    let model = sized(keys, &NAMES, ffn, latent.map(|latent| latent.head_dim()).or(channels))?;
    let bias = keys.flag("add_bias_linear", true)?;
    let norm = match keys.word("normalization")?.unwrap_or("LayerNorm") {
        "LayerNorm" => Norm::Layer { bias: true },
        "RMSNorm" => Norm::Rms,
        other => return Err(keys.wrong("normalization", &Value::from(other), "\"LayerNorm\" or \"RMSNorm\"")),
    };
    let groups = keys.size_or("num_query_groups", HEADS, model.heads, model.heads)?;
    let norms = keys.flag("qk_layernorm", false)?;
    if latent.is_some() && !norms {
        let why = "latent attention without norms on its short vectors is not described";
        return Err(keys.unsupported("qk_layernorm", &Value::Bool(false), why, "write qk_layernorm = true"));
    }
    let (experts, sparse) = routed::read(keys, (model.layers, ffn))?;
    Ok(Decoder {
        // Latent attention gives every head keys and values of its own.
        kv_heads: if latent.is_some() { model.heads } else { groups },
        norm,
        gating,
        position: position(keys, model.head_dim, latent)?,
        qkv_bias: keys.flag("add_qkv_bias", false)? || bias,
        output_bias: bias,
        ffn_bias: bias,
        qk_norm: (norms && latent.is_none()).then_some(QkNorm::PerHead),
        tied_head: !keys.flag("untie_embeddings_and_output_weights", false)?,
        experts: experts.map(|experts| crate::model::experts::Experts { bias, ..experts }),
        dense_first: sparse.first,
        every: sparse.every,
        latent,
        ..model
    })
}

/// How hidden values are made.
fn gating(keys: &Keys<'_>) -> Result<Gating, ModelError> {
    let (gated, squared) = (keys.flag("swiglu", false)?, keys.flag("squared_relu", false)?);
    if gated && squared {
        let why = "Megatron-LM refuses --squared-relu with --swiglu";
        return Err(keys.unsupported("squared_relu", &Value::Bool(true), why, "remove one of the two"));
    }
    Ok(match (gated, squared) {
        (true, _) => Gating::Gated(Activation::Silu),
        (false, true) => Gating::Plain(Activation::ReluSquared),
        (false, false) => Gating::Plain(Activation::Gelu),
    })
}

/// Width of the dense feed-forward: where it is not said, four times the model's, and of a gated one two thirds of that in whole 64s.
fn feed_forward(keys: &Keys<'_>, gating: Gating) -> Result<u64, ModelError> {
    if let Some(width) = keys.size_if(&["ffn_hidden_size"], FFN)? {
        return Ok(width);
    }
    let width = keys.size(NAMES.width, WIDTH)?;
    Ok(match gating {
        Gating::Gated(_) => width * 8 / 3 / 64 * 64,
        Gating::Plain(_) => width * 4,
    })
}

fn position(keys: &Keys<'_>, head_dim: u64, latent: Option<LatentAttention>) -> Result<Position, ModelError> {
    let kind = keys.word("position_embedding_type")?.unwrap_or("learned_absolute");
    let rotary = rope(keys, head_dim, "rotary_percent", 1.0)?;
    match (kind, latent) {
        ("rope" | "yarn", Some(latent)) => Ok(Position::Rope { dims: latent.rotated }),
        ("rope" | "yarn", None) => Ok(rotary),
        (_, Some(_)) => {
            let why = "latent attention rotates, and other positions beside that are not described";
            let remedy = "write position_embedding_type = \"rope\"";
            Err(keys.unsupported("position_embedding_type", &Value::from(kind), why, remedy))
        }
        ("learned_absolute", None) => {
            Ok(Position::Learned { positions: keys.size(&["max_position_embeddings"], LENGTH)? })
        }
        ("none", None) => Ok(Position::None),
        _ => {
            let expected = "one of \"learned_absolute\", \"rope\", \"none\"";
            Err(keys.wrong("position_embedding_type", &Value::from(kind), expected))
        }
    }
}

/// Latent attention; how many heads there are is read with the decoder's.
fn latent(keys: &Keys<'_>) -> Result<Option<LatentAttention>, ModelError> {
    if !keys.flag("multi_latent_attention", false)? {
        return Ok(None);
    }
    Ok(Some(LatentAttention {
        heads: 0, // the decoder's
        query_rank: keys.size_if(&["q_lora_rank"], HEAD_DIM)?,
        rank: keys.size_or("kv_lora_rank", HEAD_DIM, 32, 32)?,
        plain: keys.size_or("qk_head_dim", HEAD_DIM, 128, 128)?,
        rotated: keys.size_or("qk_pos_emb_head_dim", HEAD_DIM, 64, 64)?,
        value: keys.size_or("v_head_dim", HEAD_DIM, 128, 128)?,
    }))
}
