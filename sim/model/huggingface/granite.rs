//! Granite 4: layers of Mamba-2 and a few of attention, each followed by a gated feed-forward, with experts or without
//! (`GraniteMoeHybridConfig`).

use serde_json::Value;

use super::ModelError;
use super::decoder::{COMMON, Decoder, activation, rope, sized};
use super::experts::{chosen, zero_to};
use super::keys::Keys;
use super::limits::{EXPERTS, FFN, HEAD_DIM, HEADS, LENGTH, PATTERN};
use super::mixers::{harmless, listed, mamba};
use crate::model::experts::{Experts, Router, Score};
use crate::model::{Activation, Gating, Layer, Mamba2, Mixer, Position};

/// Reads `model_type` `granitemoehybrid`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let shared = keys.size(&["shared_intermediate_size"], FFN)?;
    let model = sized(keys, &COMMON, shared, None)?;
    let sizes = Mamba2 {
        heads: keys.size_or("mamba_n_heads", HEADS, 128, 128)?, // GraniteMoeHybridConfig
        head_dim: 0,
        groups: keys.size_or("mamba_n_groups", HEADS, 1, 1)?, // GraniteMoeHybridConfig
        state: keys.size_or("mamba_d_state", HEAD_DIM, 256, 256)?, // GraniteMoeHybridConfig
        conv: keys.size_or("mamba_d_conv", PATTERN, 4, 4)?,   // GraniteMoeHybridConfig
        chunk: keys.size_or("mamba_chunk_size", LENGTH, 256, 256)?, // GraniteMoeHybridConfig
        conv_bias: keys.flag("mamba_conv_bias", true)?,       // GraniteMoeHybridConfig
        bias: keys.flag("mamba_proj_bias", false)?,           // GraniteMoeHybridConfig
    };
    let head_dim = match keys.peek("mamba_d_head").and_then(Value::as_str) {
        Some("auto") => {
            keys.ask("mamba_d_head");
            None
        }
        _ => keys.size_if(&["mamba_d_head"], HEAD_DIM)?,
    };
    let expand = keys.size_or("mamba_expand", HEADS, 2, 2)?; // GraniteMoeHybridConfig
    let sizes = Mamba2 { head_dim: head_dim.unwrap_or(expand * model.width / sizes.heads).max(1), ..sizes };
    let mixer = Mixer::Mamba2(mamba(keys, model.width, sizes)?);
    let count = zero_to(keys, "num_local_experts", EXPERTS, 8)?; // GraniteMoeHybridConfig
    let position = match keys.word("position_embedding_type")? {
        Some("nope") | None => Position::None, // GraniteMoeHybridConfig
        Some(_) => rope(keys, model.head_dim, "partial_rotary_factor", 1.0)?,
    };
    let attention_bias = keys.flag("attention_bias", false)?; // GraniteMoeHybridConfig
    let mut notes = vec![];
    for key in ["embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"] {
        if keys.number(key)?.is_some_and(|factor| factor != 1.0) {
            notes.push(format!("{key:?} is left out: a product with a number"));
        }
    }
    harmless(keys);
    for key in ["intermediate_size", "num_experts_per_tok", "output_router_logits", "init_method"] {
        keys.ask(key);
    }
    let decoder = Decoder {
        kv_heads: keys.size_or("num_key_value_heads", HEADS, model.heads, model.heads)?,
        position,
        gating: Gating::Gated(activation(keys, "hidden_act", Activation::Silu)?), // GraniteMoeHybridConfig
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        tied_head: keys.flag("tie_word_embeddings", false)?, // GraniteMoeHybridConfig
        experts: if count > 0 { Some(experts(keys, count, shared)?) } else { None },
        notes,
        ..model
    };
    let Some(attends) = listed(keys, decoder.layers, &[("attention", true), ("mamba", false)])? else {
        let expected = "\"mamba\" or \"attention\" for each layer";
        return Err(keys.missing("layer_types", expected, "copy it from the model's config.json"));
    };
    let one = |(place, attends): (u64, bool)| {
        let layer = decoder.layer(place);
        if attends { layer } else { Layer { mixer, ..layer } }
    };
    let list: Vec<Layer> = (0..).zip(attends).map(one).collect();
    Ok(Decoder { list: Some(list), ..decoder })
}

/// Experts of which a softmax over the chosen weighs each, beside one that all tokens pass.
fn experts(keys: &Keys<'_>, count: u64, shared: u64) -> Result<Experts, ModelError> {
    let width = keys.size(&["intermediate_size"], FFN)?;
    let experts = chosen(keys, (count, keys.size(&["num_experts_per_tok"], EXPERTS)?), width)?;
    let router = Router { score: Score::SoftmaxOfChosen, ..experts.router };
    let auxiliary_loss = keys.flag("output_router_logits", false)?; // GraniteMoeHybridConfig
    Ok(Experts { shared, router, auxiliary_loss, ..experts })
}
