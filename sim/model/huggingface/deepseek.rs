//! DeepSeek-V2 and V3: latent attention, dense blocks first, then shared and routed experts (`DeepseekV2Config`,
//! `DeepseekV3Config`; the models' own `modeling_deepseek.py` for what a block is).

use serde_json::Value;

use super::ModelError;
use super::decoder::{COMMON, Decoder, activation, sized};
use super::experts::{routed, width, zero_or, zero_to};
use super::keys::Keys;
use super::limits::{AHEAD, EXPERTS, FFN, HEAD_DIM, HEADS, PATTERN};
use crate::model::experts::{Experts, Router, Score};
use crate::model::latent::LatentAttention;
use crate::model::{Activation, Gating, Position};

/// Reads `model_type` `deepseek_v2`.
pub(super) fn read_v2(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    read(keys, Class { scoring: "softmax", method: "greedy", normalises: false }) // DeepseekV2Config
}

/// Reads `model_type` `deepseek_v3`.
pub(super) fn read_v3(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    read(keys, Class { scoring: "sigmoid", method: "noaux_tc", normalises: true }) // DeepseekV3Config
}

/// Defaults of a configuration class.
struct Class {
    scoring: &'static str,
    method: &'static str,
    normalises: bool,
}

fn read(keys: &Keys<'_>, class: Class) -> Result<Decoder, ModelError> {
    let latent = latent(keys)?;
    let head_dim = latent.head_dim();
    let model = sized(keys, &COMMON, keys.size(&["intermediate_size"], FFN)?, Some(head_dim))?;
    let kv_heads = keys.size_or("num_key_value_heads", HEADS, model.heads, model.heads)?;
    if kv_heads != model.heads {
        let why = format!("latent attention gives each of the {} heads keys and values of its own", model.heads);
        return Err(keys.unsupported("num_key_value_heads", &Value::from(kv_heads), &why, "write the number of heads"));
    }
    if keys.flag("attention_bias", false)? {
        let why = "biases in latent attention are not described";
        return Err(keys.unsupported("attention_bias", &Value::Bool(true), why, "set it to false"));
    }
    let width = width(keys)?;
    let experts = routed(keys, &["n_routed_experts"], &["num_experts_per_tok"], width)?;
    let shared = zero_or(keys, "n_shared_experts", 0)?;
    Ok(Decoder {
        position: Position::Rope { dims: latent.rotated },
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // both classes
        tied_head: keys.flag("tie_word_embeddings", false)?,                      // both classes
        dense_first: zero_or(keys, "first_k_dense_replace", 0)?,
        every: keys.size_or("moe_layer_freq", PATTERN, 1, 1)?, // both classes
        experts: Some(Experts {
            shared: shared * width,
            router: router(keys, class)?,
            auxiliary_loss: keys.number("aux_loss_alpha")?.is_some_and(|alpha| alpha != 0.0),
            ..experts
        }),
        latent: Some(latent),
        mtp_layers: zero_to(keys, "num_nextn_predict_layers", AHEAD, 0)?,
        ..model
    })
}

/// Sizes of latent attention; how many heads there are is read with the decoder's.
fn latent(keys: &Keys<'_>) -> Result<LatentAttention, ModelError> {
    if !keys.given("q_lora_rank") {
        return Err(keys.missing(
            "q_lora_rank",
            "the rank of the queries' projection, or null for none",
            "it decides the model's size, so no default is taken: copy it from the model's config.json",
        ));
    }
    Ok(LatentAttention {
        heads: 0, // the decoder's
        query_rank: keys.size_if(&["q_lora_rank"], HEAD_DIM)?,
        rank: keys.size(&["kv_lora_rank"], HEAD_DIM)?,
        plain: keys.size(&["qk_nope_head_dim"], HEAD_DIM)?,
        rotated: keys.size(&["qk_rope_head_dim"], HEAD_DIM)?,
        value: keys.size(&["v_head_dim"], HEAD_DIM)?,
    })
}

fn router(keys: &Keys<'_>, class: Class) -> Result<Router, ModelError> {
    let score = match keys.word("scoring_func")?.unwrap_or(class.scoring) {
        "softmax" => Score::Softmax,
        "sigmoid" => Score::Sigmoid,
        other => return Err(keys.wrong("scoring_func", &Value::from(other), "\"softmax\" or \"sigmoid\"")),
    };
    let method = keys.word("topk_method")?.unwrap_or(class.method);
    let (groups, kept) = (keys.size_if(&["n_group"], EXPERTS)?, keys.size_if(&["topk_group"], EXPERTS)?);
    let groups = match method {
        "greedy" => None,
        "group_limited_greedy" | "noaux_tc" => groups.zip(kept).filter(|(groups, _)| *groups > 1),
        other => {
            let expected = "\"greedy\", \"group_limited_greedy\" or \"noaux_tc\"";
            return Err(keys.wrong("topk_method", &Value::from(other), expected));
        }
    };
    if let Some((groups, kept)) = groups {
        let experts = keys.size(&["n_routed_experts"], EXPERTS)?;
        let misfit = |right: String, rule| ModelError::Misfit {
            file: keys.file(),
            left: format!("{groups} groups"),
            right,
            rule,
            remedy: "check \"n_group\", \"topk_group\" and \"n_routed_experts\"",
        };
        if !experts.is_multiple_of(groups) || experts < 2 * groups {
            return Err(misfit(format!("{experts} experts"), "each group has as many, and two or more"));
        }
        if kept > groups {
            return Err(misfit(format!("{kept} of them chosen"), "no more are chosen than there are"));
        }
    }
    Ok(Router {
        score,
        normalises: keys.flag("norm_topk_prob", class.normalises)?,
        scales: keys.number("routed_scaling_factor")?.is_some_and(|factor| factor != 1.0),
        bias: false,
        correction: method == "noaux_tc",
        groups,
    })
}
