//! Gemma 1, 2 and 3: GeGLU, wide heads, embedding scaled by √D and shared with the head; from 2 on, norms on both
//! sides of each part, softcaps, and windows in all blocks but every second (2) or sixth (3).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::keys::Keys;
use super::limits::{LENGTH, PATTERN};
use super::window::{Pattern, layer_types, place};
use crate::model::{Activation, Gating, NormPlacement, QkNorm};

/// What all three share: 256 to a head and a tied head (`GemmaConfig`, `Gemma2Config`, `Gemma3TextConfig`).
fn gemma(keys: &Keys<'_>, kv_heads: u64) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(kv_heads), Some(256), true)?;
    let attention_bias = keys.flag("attention_bias", false)?; // all three classes
    let act = activation(keys, "hidden_activation", Activation::GeluTanh)?; // all three classes
    Ok(Decoder {
        gating: Gating::Gated(act),
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        scaled_embedding: true,
        ..model
    })
}

/// Reads `model_type` `gemma`. Its first configs say `hidden_act` `gelu`, and mean the tanh form all the same.
pub(super) fn read_gemma(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    gemma(keys, 16) // GemmaConfig.num_key_value_heads
}

/// Reads `model_type` `gemma2`.
pub(super) fn read_gemma2(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = gemma(keys, 4)?; // Gemma2Config.num_key_value_heads
    newer(keys, model, 2, true) // Gemma2Config: every other block slides; softcaps 50 and 30
}

/// Reads `model_type` `gemma3_text`.
pub(super) fn read_gemma3(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = gemma(keys, 4)?; // Gemma3TextConfig.num_key_value_heads
    let mut every = 6; // Gemma3TextConfig.sliding_window_pattern
    for key in ["_sliding_window_pattern", "sliding_window_pattern"] {
        every = keys.size_if(&[key], PATTERN)?.unwrap_or(every);
    }
    let model = newer(keys, model, every, false)?; // Gemma3TextConfig: softcaps are None
    Ok(Decoder { qk_norm: Some(QkNorm::PerHead), ..model })
}

/// What Gemma 2 and 3 share; a window of 4096 is the default of both classes.
fn newer(keys: &Keys<'_>, model: Decoder, every: u64, softcaps: bool) -> Result<Decoder, ModelError> {
    let window = match keys.size_or("sliding_window", LENGTH, 4096, 0)? {
        0 => None,
        size => Some(size),
    };
    let pattern = layer_types(keys, model.layers)?.unwrap_or(Pattern::AllButEvery(every));
    let (sliding_window, global_every) = place(window, pattern);
    Ok(Decoder {
        norm_placement: NormPlacement::PreAndPost,
        sliding_window,
        global_every,
        attention_softcap: softcap(keys, "attn_logit_softcapping", softcaps)?,
        logit_softcap: softcap(keys, "final_logit_softcapping", softcaps)?,
        ..model
    })
}

/// Whether `key` caps: a number does, `null` does not, and an absent key is the class's default.
fn softcap(keys: &Keys<'_>, key: &str, class_default: bool) -> Result<bool, ModelError> {
    Ok(keys.number(key)?.is_some() || (class_default && !keys.given(key)))
}
