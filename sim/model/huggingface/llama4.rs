//! Llama 4's text model: experts with a shared one, a sigmoid router, every layer or every second (`Llama4TextConfig`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::experts::routed;
use super::keys::Keys;
use super::limits::{FFN, PATTERN};
use crate::model::experts::{Experts, Router, Score};
use crate::model::{Activation, Gating};

/// Reads `model_type` `llama4_text`. `intermediate_size` is the width of one expert, `intermediate_size_mlp` that of a layer without.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(8), Some(128), false)?; // Llama4TextConfig: 8 key-value heads of 128, own head
    let experts = routed(keys, &["num_local_experts"], &["num_experts_per_tok"], model.ffn)?;
    let attention_bias = keys.flag("attention_bias", false)?; // Llama4TextConfig
    let mut notes = vec![];
    if keys.number("attention_chunk_size")?.is_some() {
        notes.push("\"attention_chunk_size\" is left out: attention sees the whole sequence in every layer".to_owned());
    }
    if keys.flag("use_qk_norm", true)? {
        notes.push("\"use_qk_norm\" is left out: norms without weights on queries and keys".to_owned());
    }
    for key in ["no_rope_layers", "no_rope_layer_interval", "attn_temperature_tuning", "floor_scale", "attn_scale"] {
        keys.ask(key);
    }
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Llama4TextConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        every: keys.size_or("interleave_moe_layer_step", PATTERN, 1, 1)?, // Llama4TextConfig
        every_first: false,
        experts: Some(Experts {
            shared: experts.width, // no key: one shared expert, as wide as the others
            router: Router { score: Score::Sigmoid, ..experts.router }, // no key: Llama 4 always does
            auxiliary_loss: keys.flag("output_router_logits", false)?, // Llama4TextConfig
            ..experts
        }),
        ffn: keys.size_or("intermediate_size_mlp", FFN, 16_384, model.ffn)?, // Llama4TextConfig
        notes,
        ..model
    })
}
