//! GPT-OSS: experts with biases in every block, attention with biases and sinks, windows in every second block
//! (`GptOssConfig`; arXiv 2508.10925).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like, rope_scaled};
use super::experts::routed;
use super::keys::Keys;
use super::limits::LENGTH;
use super::window::{Pattern, layer_types, place};
use crate::model::experts::{Experts, Router, Score};
use crate::model::{Activation, Gating};

/// Reads `model_type` `gpt_oss`. `intermediate_size` is the width of one expert.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(8), Some(64), false)?; // GptOssConfig: 8 key-value heads of 64, own head
    let experts = routed(keys, &["num_local_experts"], &["num_experts_per_tok", "experts_per_token"], model.ffn)?;
    let attention_bias = keys.flag("attention_bias", true)?; // GptOssConfig: q, k, v and output
    let window = Some(keys.size_or("sliding_window", LENGTH, 128, 0)?).filter(|&size| size > 0); // GptOssConfig
    let pattern = layer_types(keys, model.layers)?.unwrap_or(Pattern::AllButEvery(2)); // GptOssConfig
    let (sliding_window, global_every) = place(window, pattern);
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // GptOssConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        rope_scaled: rope_scaled(keys)?.unwrap_or(true), // GptOssConfig: YaRN by 32
        sinks: true,
        sliding_window,
        global_every,
        experts: Some(Experts {
            router: Router { score: Score::SoftmaxOfChosen, bias: true, ..experts.router },
            bias: true,
            clamped: true,
            auxiliary_loss: keys.flag("output_router_logits", false)?, // GptOssConfig
            ..experts
        }),
        ..model
    })
}
