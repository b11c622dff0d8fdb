//! Mixtral: Mistral with experts in every block (`MixtralConfig`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like};
use super::experts::routed;
use super::keys::Keys;
use super::limits::LENGTH;
use crate::model::experts::{Experts, Router};
use crate::model::{Activation, Gating};

/// Reads `model_type` `mixtral`. `intermediate_size` is the width of one expert.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(8), None, false)?; // MixtralConfig: 8 key-value heads, own head
    let experts = routed(keys, &["num_local_experts", "num_experts"], &["num_experts_per_tok"], model.ffn)?;
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // MixtralConfig
        sliding_window: keys.size_if(&["sliding_window"], LENGTH)?,               // MixtralConfig: None
        experts: Some(Experts {
            router: Router { normalises: true, ..experts.router }, // no key: Mixtral always does
            auxiliary_loss: keys.flag("output_router_logits", false)?, // MixtralConfig
            ..experts
        }),
        ..model
    })
}
