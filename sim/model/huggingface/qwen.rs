//! Qwen 2, 2.5 and 3: Llama with biases on q, k and v (2), or with norms on queries and keys (3), also with experts.

use serde_json::Value;

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::experts::{dense_first, routed, width};
use super::keys::Keys;
use super::limits::{LENGTH, PATTERN};
use super::window::{Pattern, layer_types, place};
use crate::model::experts::{Experts, Router};
use crate::model::{Activation, Gating, QkNorm};

/// Reads `model_type` `qwen2`.
pub(super) fn read_qwen2(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(32), None, false)?; // Qwen2Config: 32 key-value heads, own head
    let (sliding_window, global_every) = window(keys, model.layers)?;
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Qwen2Config
        qkv_bias: true,                                                           // no key: Qwen 2 always has it
        sliding_window,
        global_every,
        ..model
    })
}

/// Reads `model_type` `qwen3`.
pub(super) fn read_qwen3(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(32), Some(128), false)?; // Qwen3Config: 32 key-value heads of 128, own head
    let (sliding_window, global_every) = window(keys, model.layers)?;
    let attention_bias = keys.flag("attention_bias", false)?; // Qwen3Config
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Qwen3Config
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        qk_norm: Some(QkNorm::PerHead),
        sliding_window,
        global_every,
        ..model
    })
}

/// Reads `model_type` `qwen3_moe`; `Qwen3MoeConfig` has 4 key-value heads and no head dimension of its own.
pub(super) fn read_qwen3_moe(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(4), None, false)?;
    let (sliding_window, global_every) = window(keys, model.layers)?;
    let attention_bias = keys.flag("attention_bias", false)?; // Qwen3MoeConfig
    let experts = routed(keys, &["num_experts", "num_local_experts"], &["num_experts_per_tok"], width(keys)?)?;
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Qwen3MoeConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        qk_norm: Some(QkNorm::PerHead),
        sliding_window,
        global_every,
        dense_first: dense_first(keys)?,
        every: keys.size_or("decoder_sparse_step", PATTERN, 1, 1)?, // Qwen3MoeConfig
        every_first: false,
        experts: Some(Experts {
            router: Router { normalises: keys.flag("norm_topk_prob", false)?, ..experts.router }, // Qwen3MoeConfig
            auxiliary_loss: keys.flag("output_router_logits", false)?,                            // Qwen3MoeConfig
            ..experts
        }),
        ..model
    })
}

/// `use_sliding_window` (false), `sliding_window` (4096) and `max_window_layers` (28), of `Qwen2Config` and
/// `Qwen3Config`: the first `max_window_layers` blocks see everything, the others slide.
fn window(keys: &Keys<'_>, layers: u64) -> Result<(Option<u64>, u64), ModelError> {
    let size = keys.size_or("sliding_window", LENGTH, 4096, 0)?;
    let listed = layer_types(keys, layers)?;
    if !keys.flag("use_sliding_window", false)? || size == 0 {
        return Ok((None, 0));
    }
    if let Some(pattern) = listed {
        return Ok(place(Some(size), pattern));
    }
    let zero = keys.peek("max_window_layers").and_then(Value::as_u64) == Some(0);
    let full = if zero { 0 } else { keys.size_or("max_window_layers", PATTERN, 28, 28)? };
    match full {
        0 => Ok(place(Some(size), Pattern::AllButEvery(0))),
        full if full >= layers => Ok((None, 0)),
        full => Err(keys.unsupported(
            "max_window_layers",
            &Value::from(full),
            &format!("windows in the last blocks only, of {layers}, are not supported"),
            &format!("say 0 for a window everywhere or {layers} for none"),
        )),
    }
}
