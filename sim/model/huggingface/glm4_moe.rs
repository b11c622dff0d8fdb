//! GLM-4.5: grouped queries with biases and perhaps norms, dense layers first, then shared and routed experts (`Glm4MoeConfig`).

use super::ModelError;
use super::decoder::{Decoder, activation, llama_like, rope};
use super::experts::{routed, width, zero_or, zero_to};
use super::keys::Keys;
use super::limits::{AHEAD, EXPERTS};
use crate::model::experts::{Experts, Router, Score};
use crate::model::{Activation, Gating, QkNorm};

/// Reads `model_type` `glm4_moe`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let model = llama_like(keys, Some(8), None, false)?; // Glm4MoeConfig: 8 key-value heads, own head
    let width = width(keys)?;
    let experts = routed(keys, &["n_routed_experts"], &["num_experts_per_tok"], width)?;
    let groups = keys.size_if(&["n_group"], EXPERTS)?.zip(keys.size_if(&["topk_group"], EXPERTS)?);
    let router = Router {
        score: Score::Sigmoid,
        normalises: keys.flag("norm_topk_prob", true)?, // Glm4MoeConfig
        scales: keys.number("routed_scaling_factor")?.is_some_and(|factor| factor != 1.0),
        bias: false,
        correction: true,
        groups: groups.filter(|(groups, _)| *groups > 1),
    };
    Ok(Decoder {
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // Glm4MoeConfig
        position: rope(keys, model.head_dim, "partial_rotary_factor", 0.5)?,      // Glm4MoeConfig
        qkv_bias: keys.flag("attention_bias", false)?,                            // Glm4MoeConfig: not on the output
        qk_norm: keys.flag("use_qk_norm", false)?.then_some(QkNorm::PerHead),     // Glm4MoeConfig
        dense_first: zero_or(keys, "first_k_dense_replace", 1)?,                  // Glm4MoeConfig
        experts: Some(Experts { shared: zero_or(keys, "n_shared_experts", 1)? * width, router, ..experts }), // Glm4MoeConfig
        mtp_layers: zero_to(keys, "num_nextn_predict_layers", AHEAD, 0)?,
        ..model
    })
}
