//! Models of Megatron-LM's arguments that no architecture of a `config.json` has: the arguments themselves, as keys of `model.config`
//! (`sim/model/huggingface/megatron.rs`).

use toml::Value;

use super::sizes::{Sizes, put, put_found};
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::{Found, Why};

/// Writes the model, whose words are the caller's.
pub fn model(out: &mut Imported, settings: &Settings<'_>, sizes: Sizes) -> Result<(), ImportError> {
    let why = "norm, activation, positions, biases or experts that no shipped architecture has together";
    put(out, "model_type", "megatron", Why::code(why));
    put(out, "num_layers", sizes.layers.value, sizes.layers.why);
    put(out, "hidden_size", sizes.width.value, sizes.width.why);
    put(out, "num_attention_heads", sizes.heads.value, sizes.heads.why);
    put(out, "ffn_hidden_size", sizes.ffn.value, sizes.ffn.why);
    put_found(out, "num_query_groups", sizes.groups);
    put_found(out, "kv_channels", sizes.channels);
    for key in ["swiglu", "squared_relu", "add_bias_linear", "add_qkv_bias", "qk_layernorm"] {
        put_found(out, key, settings.flag(key)?.filter(|found| found.stated));
    }
    put_found(out, "untie_embeddings_and_output_weights", settings.flag("untie_embeddings_and_output_weights")?);
    put_found(out, "normalization", settings.word("normalization")?.filter(|found| found.stated));
    positions(out, settings)?;
    if let Some(found) = window(settings)? {
        let list = found.value.iter().map(|keys| Value::Integer(*keys)).collect();
        put(out, "window_size", Value::Array(list), found.why);
    }
    put_found(out, "window_attn_skip_freq", settings.count("window_attn_skip_freq")?);
    put_found(out, "softmax_type", settings.word("softmax_type")?.filter(|found| found.value != "vanilla"));
    put_found(out, "activation_func_clamp_value", settings.number("activation_func_clamp_value")?);
    for key in ["hybrid_layer_pattern", "hybrid_override_pattern", "mtp_hybrid_override_pattern"] {
        put_found(out, key, settings.word(key)?);
    }
    put_found(out, "mtp_use_repeated_layer", settings.flag("mtp_use_repeated_layer")?.filter(|found| found.value));
    // Every model's settings have these, with or without such layers.
    let hybrid = settings.word("hybrid_layer_pattern")?.or(settings.word("hybrid_override_pattern")?).is_some();
    for key in ["mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"] {
        put_found(out, key, settings.count(key)?.filter(|found| found.stated && hybrid));
    }
    let Some(experts) = sizes.experts else { return Ok(()) };
    put(out, "num_experts", experts.value, experts.why);
    for key in [
        "moe_router_topk",
        "moe_ffn_hidden_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "moe_router_num_groups",
        "moe_router_group_topk",
    ] {
        put_found(out, key, settings.count(key)?);
    }
    for key in ["moe_router_pre_softmax", "moe_router_enable_expert_bias"] {
        put_found(out, key, settings.flag(key)?.filter(|found| found.stated));
    }
    for key in ["moe_router_load_balancing_type", "moe_router_score_function"] {
        put_found(out, key, settings.word(key)?.filter(|found| found.stated));
    }
    put_found(out, "moe_router_topk_scaling_factor", settings.number("moe_router_topk_scaling_factor")?);
    if let Some(found) = settings.value("moe_layer_freq") {
        let value = match &found.value {
            serde_json::Value::Number(number) => number.as_i64().map(Value::Integer),
            serde_json::Value::String(text) => Some(Value::String(text.clone())),
            serde_json::Value::Array(list) => {
                list.iter().map(|flag| flag.as_i64().map(Value::Integer)).collect::<Option<_>>().map(Value::Array)
            }
            _ => None,
        };
        let wrong =
            || settings.wrong("moe_layer_freq", "a whole number, or a list such as ([0]*3+[1]*11)", "one of these");
        put(out, "moe_layer_freq", value.ok_or_else(wrong)?, found.why);
    }
    Ok(())
}

/// Whether attention sees a window, or adds a sink to each row, or activations are clamped: no shipped make does.
pub fn windowed(settings: &Settings<'_>) -> Result<bool, ImportError> {
    let sinks = settings.word("softmax_type")?.is_some_and(|found| found.value != "vanilla");
    Ok(sinks || window(settings)?.is_some() || settings.number("activation_func_clamp_value")?.is_some())
}

/// Keys before a query that it sees, and behind it.
fn window(settings: &Settings<'_>) -> Result<Option<Found<Vec<i64>>>, ImportError> {
    let key = "window_size";
    let Some(found) = settings.value(key) else { return Ok(None) };
    let wrong = || settings.wrong(key, "two whole numbers, such as 127 and 0, or -1 for all", "[127, 0]");
    let read = match &found.value {
        serde_json::Value::Array(list) => list.iter().map(serde_json::Value::as_i64).collect::<Option<Vec<_>>>(),
        serde_json::Value::String(text) => {
            let text = text.trim_matches(['(', ')', '[', ']']);
            text.split([',', ' ']).filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect()
        }
        serde_json::Value::Number(number) => number.as_i64().map(|keys| vec![keys, 0]),
        _ => None,
    };
    let pair = read.filter(|pair| pair.len() == 2).ok_or_else(wrong)?;
    Ok((pair[0] >= 0).then(|| found.with(pair)))
}

/// Writes how positions enter.
fn positions(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let kind = settings.word("position_embedding_type")?;
    let rotary = settings.flag("use_rotary_position_embeddings")?.filter(|found| found.value);
    let rotates = rotary.is_some() || kind.as_ref().is_some_and(|found| found.value == "rope");
    match rotary {
        Some(found) => put(out, "position_embedding_type", "rope", found.why),
        None => put_found(out, "position_embedding_type", kind.filter(|found| found.stated)),
    }
    if rotates {
        put_found(out, "rotary_percent", settings.number("rotary_percent")?.filter(|found| found.stated));
    } else {
        put_found(out, "max_position_embeddings", settings.count("max_position_embeddings")?);
    }
    Ok(())
}
