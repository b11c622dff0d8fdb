//! Nemotron-H and Nemotron 3: layers of one part each, which a string lists: `M` Mamba-2, `*` attention, `-` a feed-forward, `E` experts
//! (`NemotronHConfig`; arXiv 2504.03624). Attention has no positions.

use serde_json::Value;

use super::ModelError;
use super::decoder::{COMMON, Decoder, activation, sized};
use super::experts::{routed, zero_or, zero_to};
use super::keys::Keys;
use super::limits::{AHEAD, EXPERTS, FFN, HEAD_DIM, HEADS, LENGTH, PATTERN};
use super::mixers::{harmless, mamba, of_letters};
use crate::model::experts::{Experts, Router, Score};
use crate::model::{Activation, Gating, Mamba2, Mixer, Position};

const LETTERS: &str = "hybrid_override_pattern";
const LETTERS_AHEAD: &str = "mtp_hybrid_override_pattern";

/// Reads `model_type` `nemotron_h`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let Some(pattern) = keys.word(LETTERS)? else {
        let expected = "a letter for each layer: M, *, - or E";
        return Err(keys.missing(LETTERS, expected, "copy it from the model's config.json"));
    };
    let head_dim = keys.size_if(&["head_dim", "attention_head_dim"], HEAD_DIM)?;
    let ffn = keys.size(&["intermediate_size"], FFN)?;
    let model = sized(keys, &COMMON, ffn, head_dim)?;
    if pattern.chars().count() as u64 != model.layers {
        let expected = format!("{} letters, one for each layer of \"num_hidden_layers\"", model.layers);
        return Err(keys.wrong(LETTERS, &Value::from(pattern), expected));
    }
    let sizes = Mamba2 {
        heads: keys.size(&["mamba_num_heads"], HEADS)?,
        head_dim: keys.size(&["mamba_head_dim"], HEAD_DIM)?,
        groups: keys.size_or("n_groups", HEADS, 8, 8)?, // NemotronHConfig
        state: keys.size_or("ssm_state_size", HEAD_DIM, 128, 128)?, // NemotronHConfig
        conv: keys.size_or("conv_kernel", PATTERN, 4, 4)?, // NemotronHConfig
        chunk: keys.size_or("chunk_size", LENGTH, 128, 128)?, // NemotronHConfig
        conv_bias: keys.flag("use_conv_bias", true)?,   // NemotronHConfig
        bias: keys.flag("use_bias", false)? || keys.flag("mamba_proj_bias", false)?, // NemotronHConfig
    };
    let mixer = Mixer::Mamba2(mamba(keys, model.width, sizes)?);
    let attention_bias = keys.flag("attention_bias", false)?; // NemotronHConfig
    let decoder = Decoder {
        kv_heads: keys.size_or("num_key_value_heads", HEADS, 8, model.heads)?, // NemotronHConfig
        position: Position::None,
        gating: Gating::Plain(activation(keys, "mlp_hidden_act", Activation::ReluSquared)?), // NemotronHConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        ffn_bias: keys.flag("mlp_bias", false)?,             // NemotronHConfig
        tied_head: keys.flag("tie_word_embeddings", false)?, // NemotronHConfig
        experts: if pattern.contains('E') { Some(experts(keys)?) } else { None },
        ..model
    };
    harmless(keys);
    for key in EXPERT_KEYS {
        keys.ask(key);
    }
    // One set for all: NemotronHBridge (Megatron-Bridge 0.6.2).
    let decoder = Decoder {
        mtp_layers: zero_to(keys, "num_nextn_predict_layers", AHEAD, 0)?,
        mtp_repeated: keys.flag("mtp_use_repeated_layer", true)?,
        ..decoder
    };
    let ahead = keys.word(LETTERS_AHEAD)?.filter(|letters| !letters.is_empty());
    if let (None, 1..) = (ahead, decoder.mtp_layers) {
        let expected = "a letter for each layer of a module that predicts ahead, such as \"*E\"";
        return Err(keys.missing(LETTERS_AHEAD, expected, "copy it from the model's config.json"));
    }
    of_letters(keys, (LETTERS, pattern), ahead.map(|letters| (LETTERS_AHEAD, letters)), (decoder, mixer))
}

/// Keys of experts that a model without them may still write.
const EXPERT_KEYS: [&str; 11] = [
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "moe_shared_expert_overlap",
    "moe_latent_size",
];

/// Experts that squared ReLU activates, chosen by the sigmoid of their scores and a bias that balances them.
fn experts(keys: &Keys<'_>) -> Result<Experts, ModelError> {
    let width = keys.size(&["moe_intermediate_size"], FFN)?;
    let experts = routed(keys, &["n_routed_experts"], &["num_experts_per_tok"], width)?;
    let shared = keys.size_if(&["moe_shared_expert_intermediate_size"], FFN)?.unwrap_or(width);
    let latent = keys.size_if(&["moe_latent_size"], FFN)?;
    let groups = keys.size_if(&["n_group"], EXPERTS)?.zip(keys.size_if(&["topk_group"], EXPERTS)?);
    let router = Router {
        score: Score::Sigmoid,
        normalises: keys.flag("norm_topk_prob", true)?, // NemotronHConfig
        scales: keys.number("routed_scaling_factor")?.is_some_and(|factor| factor != 1.0),
        bias: false,
        correction: true,
        groups: groups.filter(|(groups, _)| *groups > 1),
    };
    Ok(Experts { shared: zero_or(keys, "n_shared_experts", 1)? * shared, latent, router, ..experts })
}
