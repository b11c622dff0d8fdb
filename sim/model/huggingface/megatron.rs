//! A model as Megatron-LM's arguments describe it: `model_type` `megatron`, and the names of arguments as keys (NVIDIA/Megatron-LM
//! core_v0.16.1: `megatron/training/arguments.py`, `core/transformer/transformer_config.py`; defaults are theirs).
//!
//! Other architectures fix norm, activation and positions; here each is chosen by itself.

mod hybrid;
pub mod pattern;
mod routed;

use serde_json::Value;

use super::ModelError;
use super::decoder::{Decoder, Names, rope, sized};
use super::keys::Keys;
use super::limits::{FFN, HEAD_DIM, HEADS, LAYERS, LENGTH, WIDTH};
use crate::model::latent::LatentAttention;
use crate::model::{Activation, Gating, Norm, Position, QkNorm};

const NAMES: Names =
    Names { width: &["hidden_size"], layers: &["num_layers"], heads: &["num_attention_heads"], vocab: &["vocab_size"] };

/// Reads `model_type` `megatron`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let gating = gating(keys)?;
    let ffn = feed_forward(keys, gating)?;
    let latent = latent(keys)?;
    let channels = keys.size_if(&["kv_channels"], HEAD_DIM)?;
    let letters = hybrid::letters(keys)?;
    let head_dim = latent.map(|latent| latent.head_dim()).or(channels);
    let model = match &letters {
        Some(letters) => hybrid::sized(keys, (letters, &NAMES), ffn, head_dim)?,
        None => sized(keys, &NAMES, ffn, head_dim)?,
    };
    let bias = keys.flag("add_bias_linear", true)?;
    let norm = match keys.word("normalization")?.unwrap_or("LayerNorm") {
        "LayerNorm" => Norm::Layer { bias: true },
        "RMSNorm" => Norm::Rms,
        other => return Err(keys.wrong("normalization", &Value::from(other), "\"LayerNorm\" or \"RMSNorm\"")),
    };
    let groups = keys.size_or("num_query_groups", HEADS, model.heads, model.heads)?;
    let norms = keys.flag("qk_layernorm", false)?;
    if latent.is_some() && !norms {
        let why = "latent attention without norms on its short vectors is not described";
        return Err(keys.unsupported("qk_layernorm", &Value::Bool(false), why, "write qk_layernorm = true"));
    }
    let (experts, sparse) = routed::read(keys, (model.layers, ffn))?;
    let clamped = keys.number("activation_func_clamp_value")?.is_some();
    let decoder = Decoder {
        // Latent attention gives every head keys and values of its own.
        kv_heads: if latent.is_some() { model.heads } else { groups },
        norm,
        gating,
        position: position(keys, model.head_dim, latent)?,
        rope_scaled: keys.word("position_embedding_type")? == Some("yarn"),
        qkv_bias: keys.flag("add_qkv_bias", false)? || bias,
        output_bias: bias,
        ffn_bias: bias,
        qk_norm: (norms && latent.is_none()).then_some(QkNorm::PerHead),
        tied_head: !keys.flag("untie_embeddings_and_output_weights", false)?,
        experts: experts.map(|experts| crate::model::experts::Experts { bias, clamped, ..experts }),
        sinks: keys.word("softmax_type")?.is_some_and(|kind| kind == "learnable"),
        sliding_window: window(keys)?,
        global_every: keys.size_or("window_attn_skip_freq", LAYERS, 0, 0)?,
        dense_first: sparse.first,
        every: sparse.every,
        latent,
        ..model
    };
    match letters {
        Some(letters) => hybrid::layers(keys, &letters, decoder),
        None => Ok(decoder),
    }
}

/// Keys that a query sees: so many before it, and itself (`window_size`, left and right).
fn window(keys: &Keys<'_>) -> Result<Option<u64>, ModelError> {
    match keys.numbers("window_size")?.as_deref() {
        None => Ok(None),
        Some(&[before, 0]) => Ok(before.checked_add(1)),
        Some(other) => {
            let expected = "[N, 0]: N keys before the query, and none behind it";
            Err(keys.wrong("window_size", &Value::from(other), expected))
        }
    }
}

/// How hidden values are made.
fn gating(keys: &Keys<'_>) -> Result<Gating, ModelError> {
    let (gated, squared) = (keys.flag("swiglu", false)?, keys.flag("squared_relu", false)?);
    if gated && squared {
        let why = "Megatron-LM refuses --squared-relu with --swiglu";
        return Err(keys.unsupported("squared_relu", &Value::Bool(true), why, "remove one of the two"));
    }
    Ok(match (gated, squared) {
        (true, _) => Gating::Gated(Activation::Silu),
        (false, true) => Gating::Plain(Activation::ReluSquared),
        (false, false) => Gating::Plain(Activation::Gelu),
    })
}

/// Width of the dense feed-forward: where it is not said, four times the model's, and of a gated one two thirds of that in whole 64s.
fn feed_forward(keys: &Keys<'_>, gating: Gating) -> Result<u64, ModelError> {
    if let Some(width) = keys.size_if(&["ffn_hidden_size"], FFN)? {
        return Ok(width);
    }
    let width = keys.size(NAMES.width, WIDTH)?;
    Ok(match gating {
        Gating::Gated(_) => width * 8 / 3 / 64 * 64,
        Gating::Plain(_) => width * 4,
    })
}

fn position(keys: &Keys<'_>, head_dim: u64, latent: Option<LatentAttention>) -> Result<Position, ModelError> {
    let kind = keys.word("position_embedding_type")?.unwrap_or("learned_absolute");
    let rotary = rope(keys, head_dim, "rotary_percent", 1.0)?;
    match (kind, latent) {
        ("rope" | "yarn", Some(latent)) => Ok(Position::Rope { dims: latent.rotated }),
        ("rope" | "yarn", None) => Ok(rotary),
        (_, Some(_)) => {
            let why = "latent attention rotates, and other positions beside that are not described";
            let remedy = "write position_embedding_type = \"rope\"";
            Err(keys.unsupported("position_embedding_type", &Value::from(kind), why, remedy))
        }
        ("learned_absolute", None) => {
            Ok(Position::Learned { positions: keys.size(&["max_position_embeddings"], LENGTH)? })
        }
        ("none", None) => Ok(Position::None),
        _ => {
            let expected = "one of \"learned_absolute\", \"rope\", \"none\"";
            Err(keys.wrong("position_embedding_type", &Value::from(kind), expected))
        }
    }
}

/// Latent attention; how many heads there are is read with the decoder's.
fn latent(keys: &Keys<'_>) -> Result<Option<LatentAttention>, ModelError> {
    if !keys.flag("multi_latent_attention", false)? {
        return Ok(None);
    }
    Ok(Some(LatentAttention {
        heads: 0, // the decoder's
        query_rank: keys.size_if(&["q_lora_rank"], HEAD_DIM)?,
        rank: keys.size_or("kv_lora_rank", HEAD_DIM, 32, 32)?,
        plain: keys.size_or("qk_head_dim", HEAD_DIM, 128, 128)?,
        rotated: keys.size_or("qk_pos_emb_head_dim", HEAD_DIM, 64, 64)?,
        value: keys.size_or("v_head_dim", HEAD_DIM, 128, 128)?,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::experts::Score;
    use crate::model::huggingface::{ModelError, parse, shipped};
    use crate::model::{FeedForward, Gating, ModelConfig, Position};

    fn model(changes: &Value) -> Result<ModelConfig, ModelError> {
        let mut keys = json!({"model_type": "megatron", "num_layers": 12, "hidden_size": 512, "num_attention_heads": 8,
            "vocab_size": 50257, "max_position_embeddings": 1024});
        for (key, value) in changes.as_object().expect("an object") {
            keys[key] = value.clone();
        }
        parse(&keys.to_string(), "config.json")
    }

    #[test]
    fn arguments_make_the_model_that_the_shipped_configs_make() {
        for (name, arguments) in [
            (
                "gpt-megatron-175b",
                json!({"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "vocab_size": 51200, "max_position_embeddings": 2048}),
            ),
            (
                "llama-3.1-8b",
                json!({"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8,
                    "ffn_hidden_size": 14336, "vocab_size": 128_256, "swiglu": true, "normalization": "RMSNorm",
                    "position_embedding_type": "rope", "add_bias_linear": false, "untie_embeddings_and_output_weights": true}),
            ),
            (
                "nemotron-4-15b",
                json!({"num_layers": 32, "hidden_size": 6144, "num_attention_heads": 48, "num_query_groups": 8,
                    "vocab_size": 256_000, "squared_relu": true, "position_embedding_type": "rope", "rotary_percent": 0.5,
                    "add_bias_linear": false, "untie_embeddings_and_output_weights": true}),
            ),
            (
                "nemotron-h-8b",
                json!({"num_layers": null, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "kv_channels": 128,
                    "ffn_hidden_size": 21504, "vocab_size": 131_072, "squared_relu": true, "normalization": "RMSNorm",
                    "position_embedding_type": "none", "add_bias_linear": false, "untie_embeddings_and_output_weights": true,
                    "hybrid_layer_pattern": "M-M-M-M*-M-M-|M-M-M*-M-M-M-|M-M*-M-M-M-M-M*-|M-M-M-M-M-"}),
            ),
        ] {
            let (own, known) = (model(&arguments).expect(name), shipped::named(name).expect(name));
            assert_eq!((own.params().total, own.position), (known.params().total, known.position), "{name}");
            assert_eq!(own.norms(), known.norms(), "{name}");
        }
    }

    #[test]
    fn a_gate_takes_two_thirds_of_the_width_in_whole_64s() {
        let ffn = |changes| model(&changes).expect("a model").feed_forward_width();
        assert_eq!(ffn(json!({})), 2048);
        assert_eq!(ffn(json!({"swiglu": true})), 1344);
    }

    #[test]
    fn experts_have_the_gating_and_the_layers_that_the_arguments_say() {
        let made = model(&json!({"num_experts": 4, "moe_router_topk": 1, "moe_router_load_balancing_type": "sinkhorn",
            "moe_layer_freq": "([0]*3+[1]*9)", "add_bias_linear": false}))
        .expect("a model");
        let experts = made.experts().expect("experts");
        assert_eq!((experts.count, experts.top_k, experts.width, experts.bias), (4, 1, 2048, false));
        assert_eq!(experts.router.score, Score::Sinkhorn);
        assert!(matches!(experts.gating, Gating::Plain(_)));
        let sparse = |at| matches!(made.layers.at(at).feed_forward, FeedForward::Experts(_));
        assert_eq!([0, 2, 3, 11].map(sparse), [false, false, true, true]);
        assert_eq!(made.position, Position::Learned { positions: 1024 });
    }

    #[test]
    fn arguments_that_make_no_model_are_refused_by_name() {
        for (changes, words) in [
            (json!({"normalization": "BatchNorm"}), "\"normalization\""),
            (json!({"position_embedding_type": "mrope"}), "\"position_embedding_type\""),
            (json!({"swiglu": true, "squared_relu": true}), "\"squared_relu\""),
            (json!({"multi_latent_attention": true, "position_embedding_type": "rope"}), "qk_layernorm"),
            (json!({"num_experts": 4, "moe_layer_freq": "([0]*3)"}), "one 0 or 1 for each of 12 layers"),
            (json!({"num_experts": 4, "moe_layer_freq": 0}), "\"moe_layer_freq\""),
            (json!({"num_experts": 4, "moe_router_num_groups": 3, "moe_router_group_topk": 1}), "3 groups"),
            (json!({"num_experts": 1, "moe_router_topk": 2}), "2 experts for each token"),
            (json!({"moe_router_topk": 2}), "moe_router_topk"),
            (json!({"hybrid_layer_pattern": "M-M-"}), "one for each layer of \"num_layers\""),
            (json!({"num_layers": null, "hybrid_layer_pattern": "MG"}), "not 'G'"),
            (json!({"num_layers": null, "hybrid_layer_pattern": "ME"}), "not 'E'"),
            (json!({"num_layers": null, "hybrid_layer_pattern": "M-/*-/M-"}), "the same letters behind each"),
        ] {
            let error = model(&changes).expect_err(words).to_string();
            assert!(error.contains(words), "{changes}: {error}");
        }
    }
}
