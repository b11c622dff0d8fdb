//! Qwen3-Next: three layers of gated DeltaNet for each one of gated attention, experts in all of them (`Qwen3NextConfig`).

use super::ModelError;
use super::decoder::{COMMON, Decoder, activation, rope, sized};
use super::experts::{dense_first, routed, width};
use super::keys::Keys;
use super::limits::{FFN, HEAD_DIM, HEADS, PATTERN};
use super::mixers::{gated_delta, listed};
use crate::model::experts::{Experts, Router};
use crate::model::{Activation, GatedDelta, Gating, Layer, Mixer, QkNorm};

/// Reads `model_type` `qwen3_next`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let head_dim = keys.size_or("head_dim", HEAD_DIM, 256, 256)?; // Qwen3NextConfig
    let model = sized(keys, &COMMON, keys.size(&["intermediate_size"], FFN)?, Some(head_dim))?;
    let delta = GatedDelta {
        key_heads: keys.size_or("linear_num_key_heads", HEADS, 16, 16)?, // Qwen3NextConfig
        key_dim: keys.size_or("linear_key_head_dim", HEAD_DIM, 128, 128)?, // Qwen3NextConfig
        value_heads: keys.size_or("linear_num_value_heads", HEADS, 32, 32)?, // Qwen3NextConfig
        value_dim: keys.size_or("linear_value_head_dim", HEAD_DIM, 128, 128)?, // Qwen3NextConfig
        conv: keys.size_or("linear_conv_kernel_dim", PATTERN, 4, 4)?,    // Qwen3NextConfig
    };
    let delta = gated_delta(keys, delta, "check \"linear_num_value_heads\" and \"linear_num_key_heads\"")?;
    let attention_bias = keys.flag("attention_bias", false)?; // Qwen3NextConfig
    let experts = routed(keys, &["num_experts"], &["num_experts_per_tok"], width(keys)?)?;
    let decoder = Decoder {
        kv_heads: keys.size_or("num_key_value_heads", HEADS, 2, model.heads)?, // Qwen3NextConfig
        position: rope(keys, head_dim, "partial_rotary_factor", 0.25)?,        // Qwen3NextConfig
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Qwen3NextConfig
        tied_head: keys.flag("tie_word_embeddings", false)?,                   // Qwen3NextConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        qk_norm: Some(QkNorm::PerHead),
        output_gate: true,
        dense_first: dense_first(keys)?,
        every: keys.size_or("decoder_sparse_step", PATTERN, 1, 1)?, // Qwen3NextConfig
        every_first: false,
        experts: Some(Experts {
            shared: keys.size(&["shared_expert_intermediate_size"], FFN)?,
            shared_gate: true,
            router: Router { normalises: keys.flag("norm_topk_prob", true)?, ..experts.router }, // Qwen3NextConfig
            auxiliary_loss: keys.flag("output_router_logits", false)?,                           // Qwen3NextConfig
            ..experts
        }),
        ..model
    };
    let full = full_attention(keys, decoder.layers)?;
    let layer = |at: usize, full: &bool| {
        let layer = decoder.layer(at as u64);
        if *full { layer } else { Layer { mixer: Mixer::GatedDelta(delta), ..layer } }
    };
    let list = full.iter().enumerate().map(|(at, full)| layer(at, full)).collect();
    Ok(Decoder { list: Some(list), ..decoder })
}

/// Which layers have attention: those that `layer_types` names, or every fourth (`full_attention_interval`).
fn full_attention(keys: &Keys<'_>, layers: u64) -> Result<Vec<bool>, ModelError> {
    let every = keys.size_or("full_attention_interval", PATTERN, 4, 4)?; // Qwen3NextConfig
    let named = listed(keys, layers, &[("full_attention", true), ("linear_attention", false)])?;
    Ok(named.unwrap_or_else(|| (1..=layers).map(|layer| layer.is_multiple_of(every)).collect()))
}
