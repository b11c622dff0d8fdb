//! MaxText's decoders as configs of Hugging Face's classes: which class a `decoder_block` is of, and which key of it each of MaxText's
//! keys is.
//!
//! Source: maxtext 0.2.5, `models/*.py`, `layers/attentions.py`, `layers/attention_mla.py`, `layers/moe.py`. A key of a decoder's shape
//! that differs from base.yml's and that no rule here asks for makes another model than any that is read: it is refused.

use serde_json::Value;

use crate::import::error::ImportError;
use crate::import::settings::{Settings, shown};
use crate::import::why::{Found, Why};

/// What a size grows with (`global_parameter_scale`), or how else its value is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Width,
    Heads,
    Layers,
    /// Two layers are written as one.
    Pairs,
    Nothing,
    /// Zero stands for none.
    None,
}

/// A key of MaxText's, that of the config, and how it is read.
type Size = (&'static str, &'static str, By);

/// What every decoder has.
const COMMON: [Size; 6] = [
    ("base_emb_dim", "hidden_size", By::Width),
    ("base_num_query_heads", "num_attention_heads", By::Heads),
    ("base_num_kv_heads", "num_key_value_heads", By::Heads),
    ("base_num_decoder_layers", "num_hidden_layers", By::Layers),
    ("vocab_size", "vocab_size", By::Nothing),
    ("logits_via_embedding", "tie_word_embeddings", By::Nothing),
];
const HEAD: [Size; 1] = [("head_dim", "head_dim", By::Nothing)];
const FFN: [Size; 1] = [("base_mlp_dim", "intermediate_size", By::Heads)];
const WINDOW: [Size; 1] = [("sliding_window_size", "sliding_window", By::Nothing)];
const CAPS: [Size; 2] = [
    ("attn_logits_soft_cap", "attn_logit_softcapping", By::None),
    ("final_logits_soft_cap", "final_logit_softcapping", By::None),
];
const LOCAL_EXPERTS: [Size; 2] =
    [("num_experts", "num_local_experts", By::Nothing), ("num_experts_per_tok", "num_experts_per_tok", By::Nothing)];
const EXPERTS: [Size; 3] = [
    ("num_experts", "num_experts", By::Nothing),
    ("num_experts_per_tok", "num_experts_per_tok", By::Nothing),
    ("base_moe_mlp_dim", "moe_intermediate_size", By::Heads),
];
const NORMALISED: [Size; 1] = [("norm_topk_prob", "norm_topk_prob", By::Nothing)];
const LATENT: [Size; 5] = [
    ("q_lora_rank", "q_lora_rank", By::None),
    ("kv_lora_rank", "kv_lora_rank", By::Nothing),
    ("qk_nope_head_dim", "qk_nope_head_dim", By::Nothing),
    ("qk_rope_head_dim", "qk_rope_head_dim", By::Nothing),
    ("v_head_dim", "v_head_dim", By::Nothing),
];
const ROUTED: [Size; 6] = [
    ("num_experts", "n_routed_experts", By::Nothing),
    ("num_experts_per_tok", "num_experts_per_tok", By::Nothing),
    ("base_moe_mlp_dim", "moe_intermediate_size", By::Heads),
    ("shared_experts", "n_shared_experts", By::Nothing),
    ("first_num_dense_layers", "first_k_dense_replace", By::Nothing),
    ("routed_scaling_factor", "routed_scaling_factor", By::Nothing),
];
const AHEAD: [Size; 1] = [("mtp_num_layers", "num_nextn_predict_layers", By::Nothing)];
const DELTA: [Size; 7] = [
    ("gdn_conv_kernel_dim", "linear_conv_kernel_dim", By::Nothing),
    ("gdn_key_head_dim", "linear_key_head_dim", By::Nothing),
    ("gdn_value_head_dim", "linear_value_head_dim", By::Nothing),
    ("gdn_num_key_heads", "linear_num_key_heads", By::Nothing),
    ("gdn_num_value_heads", "linear_num_value_heads", By::Nothing),
    ("inhomogeneous_layer_cycle_interval", "full_attention_interval", By::Nothing),
    ("partial_rotary_factor", "partial_rotary_factor", By::Nothing),
];
const LLAMA4: [Size; 5] = [
    ("base_mlp_dim", "intermediate_size_mlp", By::Heads),
    ("base_moe_mlp_dim", "intermediate_size", By::Heads),
    ("interleave_moe_layer_step", "interleave_moe_layer_step", By::Nothing),
    ("chunk_attn_window_size", "attention_chunk_size", By::Nothing),
    ("use_qk_norm", "use_qk_norm", By::Nothing),
];
const GPT3: [Size; 6] = [
    ("base_emb_dim", "n_embd", By::Width),
    ("base_num_query_heads", "n_head", By::Heads),
    ("base_num_decoder_layers", "n_layer", By::Layers),
    ("base_mlp_dim", "n_inner", By::Heads),
    ("vocab_size", "vocab_size", By::Nothing),
    ("logits_via_embedding", "tie_word_embeddings", By::Nothing),
];
const POSITIONS: [Size; 1] = [("trainable_position_size", "n_positions", By::Nothing)];

/// A kind of decoder.
pub(super) struct Block {
    names: &'static [&'static str],
    /// `model_type` of the config.
    pub(super) model_type: &'static str,
    sizes: &'static [&'static [Size]],
    /// Keys that its code takes as having one value, as JSON.
    always: &'static [(&'static str, &'static str)],
    /// Keys that its code reads, or overrides, with nothing of the shape in them.
    asks: &'static [&'static str],
    /// What of the config follows of several keys.
    more: fn(&Settings<'_>, &mut Vec<Made>) -> Result<(), ImportError>,
}

const SWIGLU: (&str, &str) = ("mlp_activations", "[\"silu\",\"linear\"]");
const GEGLU: (&str, &str) = ("mlp_activations", "[\"gelu\",\"linear\"]");
const POST: [(&str, &str); 3] = [GEGLU, ("use_post_attn_norm", "true"), ("use_post_ffw_norm", "true")];

const BLOCKS: [Block; 14] = [
    Block { names: &["llama2", "mistral"], model_type: "llama", sizes: &[&COMMON, &HEAD, &FFN], ..Block::PLAIN },
    Block {
        names: &["mixtral"],
        model_type: "mixtral",
        sizes: &[&COMMON, &HEAD, &FFN, &LOCAL_EXPERTS],
        more: as_wide,
        ..Block::PLAIN
    },
    Block { names: &["gemma"], model_type: "gemma", sizes: &[&COMMON, &HEAD, &FFN], always: &[GEGLU], ..Block::PLAIN },
    Block {
        names: &["gemma2"],
        model_type: "gemma2",
        sizes: &[&PAIRS, &HEAD, &FFN, &WINDOW, &CAPS],
        always: &POST,
        ..Block::PLAIN
    },
    Block {
        names: &["gemma3"],
        model_type: "gemma3_text",
        sizes: &[&COMMON, &HEAD, &FFN, &WINDOW, &CAPS],
        always: &POST,
        asks: &["use_qk_norm"],
        ..Block::PLAIN
    },
    Block {
        names: &["qwen2"],
        model_type: "qwen2",
        sizes: &[&COMMON, &HEAD, &FFN],
        always: &[SWIGLU, ("attention_bias", "true")],
        ..Block::PLAIN
    },
    Block {
        names: &["qwen3"],
        model_type: "qwen3",
        sizes: &[&COMMON, &HEAD, &FFN],
        always: &[SWIGLU, ("use_qk_norm", "true")],
        ..Block::PLAIN
    },
    Block {
        names: &["qwen3_moe"],
        model_type: "qwen3_moe",
        sizes: &[&COMMON, &HEAD, &FFN, &EXPERTS, &NORMALISED],
        always: &[SWIGLU, ("use_qk_norm", "true")],
        ..Block::PLAIN
    },
    Block {
        names: &["deepseek"],
        model_type: "deepseek_v3",
        sizes: &[&COMMON, &FFN, &LATENT, &ROUTED, &AHEAD],
        always: &[SWIGLU, ("attention_type", "\"mla\"")],
        asks: &["head_dim", "norm_topk_prob"],
        more: router,
    },
    Block {
        names: &["gpt_oss"],
        model_type: "gpt_oss",
        sizes: &[&COMMON, &HEAD, &FFN, &LOCAL_EXPERTS, &WINDOW],
        always: &[
            ("mlp_activations", "[\"sigmoid\",\"linear\"]"),
            ("attention_bias", "true"),
            ("attention_sink", "true"),
            ("mlp_bias", "true"),
            ("routed_bias", "true"),
            ("inhomogeneous_layer_cycle_interval", "2"),
        ],
        asks: &["mlp_activations_limit"],
        more: as_wide,
    },
    Block {
        names: &["qwen3_next", "qwen3_5"],
        model_type: "qwen3_next",
        sizes: &[&COMMON, &HEAD, &FFN, &EXPERTS, &NORMALISED, &DELTA],
        always: &[SWIGLU],
        asks: &["use_qk_norm"],
        more: shared,
    },
    Block {
        names: &["llama4"],
        model_type: "llama4_text",
        sizes: &[&COMMON, &HEAD, &LOCAL_EXPERTS, &LLAMA4],
        always: &[SWIGLU, ("shared_experts", "1")],
        asks: &["inhomogeneous_layer_cycle_interval"],
        ..Block::PLAIN
    },
    Block {
        names: &["olmo3"],
        model_type: "olmo3",
        sizes: &[&COMMON, &HEAD, &FFN, &WINDOW],
        always: &[SWIGLU, ("use_qk_norm", "true"), ("inhomogeneous_layer_cycle_interval", "4")],
        ..Block::PLAIN
    },
    Block {
        names: &["gpt3"],
        model_type: "gpt2",
        sizes: &[&GPT3, &POSITIONS],
        always: &[("mlp_activations", "[\"gelu\"]")],
        asks: &["normalize_embedding_logits"],
        more: heads,
    },
];

/// [`COMMON`], with two layers written as one.
const PAIRS: [Size; 6] = {
    let mut pairs = COMMON;
    pairs[3].2 = By::Pairs;
    pairs
};

impl Block {
    /// A decoder of Llama's kind.
    const PLAIN: Block =
        Block { names: &[], model_type: "llama", sizes: &[], always: &[SWIGLU], asks: &[], more: |_, _| Ok(()) };

    /// The kind of a `decoder_block`.
    pub(super) fn named(name: &str) -> Option<&'static Block> {
        BLOCKS.iter().find(|block| block.names.contains(&name))
    }

    /// All names.
    pub(super) fn known() -> String {
        BLOCKS.iter().flat_map(|block| block.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// Keys of the config, of a configuration whose sizes grow so.
    pub(super) fn config(&self, settings: &Settings<'_>, grown: impl Fn(By) -> i64) -> Result<Vec<Made>, ImportError> {
        for (key, value) in self.always {
            let must: Value = serde_json::from_str(value).unwrap_or_default();
            let found = settings.value(key).map(|found| found.value);
            if found.as_ref().is_some_and(|found| *found != must) {
                let what = format!("{key} = {} in a decoder of {}", shown(&found.unwrap_or_default()), self.names[0]);
                return Err(settings.unsupported(key, what, &format!("set it to {value}")));
            }
        }
        for key in self.asks {
            let _ = settings.value(key);
        }
        let mut made = vec![];
        for &(key, theirs, by) in self.sizes.iter().copied().flatten() {
            let Some(found) = settings.value(key) else { continue };
            made.extend(read(settings, (key, theirs, by), found, grown(by))?);
        }
        (self.more)(settings, &mut made)?;
        Ok(made)
    }
}

/// A key of the config that is made.
pub(super) struct Made {
    pub(super) key: &'static str,
    pub(super) value: toml::Value,
    pub(super) why: Why,
    /// Whether the configuration itself says it, and no file of a model.
    pub(super) stated: bool,
}

impl Made {
    fn of<T>(key: &'static str, value: impl Into<toml::Value>, found: &Found<T>) -> Made {
        Made { key, value: value.into(), why: found.why.clone(), stated: found.stated }
    }
}

/// One key of the config; none where the value stands for none.
fn read(
    settings: &Settings<'_>,
    (key, theirs, by): Size,
    found: Found<Value>,
    factor: i64,
) -> Result<Option<Made>, ImportError> {
    let number = match &found.value {
        Value::Bool(flag) => return Ok(Some(Made::of(theirs, *flag, &found))),
        Value::Number(number) if !number.is_i64() => {
            let number = number.as_f64().filter(|number| number.is_finite()).unwrap_or_default();
            let none = by == By::None && number == 0.0;
            return Ok((!none).then(|| Made::of(theirs, number, &found)));
        }
        _ => settings.integer(key)?.map_or(0, |found| found.value),
    };
    // Nothing is said of it by these, but the rank of a projection that is left out.
    match number {
        0 if by == By::None => return Ok((key == "q_lora_rank").then(|| Made::of(theirs, "null", &found))),
        -1 => return Ok(None),
        ..0 => return Err(settings.wrong(key, "a whole number, 1 or more", "1 or more")),
        _ => {}
    }
    let why = match (by, factor) {
        (By::Pairs, _) => found.why.so("two layers each"),
        (_, 1) => found.why,
        _ => found.why.so(&format!("times {factor} at that scale")),
    };
    Ok(Some(Made { key: theirs, value: number.saturating_mul(factor).into(), why, stated: found.stated }))
}

/// Experts are as wide as `base_mlp_dim`: MaxText refuses others where every layer has experts.
fn as_wide(settings: &Settings<'_>, _: &mut Vec<Made>) -> Result<(), ImportError> {
    let (all, experts) = (settings.integer("base_mlp_dim")?, settings.integer("base_moe_mlp_dim")?);
    let other = experts.filter(|experts| experts.value > 0 && all.is_none_or(|all| all.value != experts.value));
    match other {
        Some(_) => Err(settings.wrong("base_moe_mlp_dim", "base_mlp_dim's, where every layer has experts", "the same")),
        None => Ok(()),
    }
}

/// How DeepSeek's router chooses.
fn router(settings: &Settings<'_>, made: &mut Vec<Made>) -> Result<(), ImportError> {
    let score = [("softmax", "softmax"), ("sigmoid", "sigmoid"), ("", "softmax")];
    if let Some(found) = settings.choice("routed_score_func", &score)? {
        made.push(Made::of("scoring_func", found.value, &found));
    }
    let groups = [("n_routing_groups", "n_group"), ("topk_routing_group", "topk_group")];
    let mut grouped = false;
    for (key, theirs) in groups {
        if let Some(found) = settings.integer(key)?.filter(|found| found.value > 0) {
            made.push(Made::of(theirs, found.value, &found));
            grouped = true;
        }
    }
    if let Some(found) = settings.flag("routed_bias")? {
        let method = match (found.value, grouped) {
            (true, _) => "noaux_tc",
            (false, true) => "group_limited_greedy",
            (false, false) => "greedy",
        };
        made.push(Made::of("topk_method", method, &found));
    }
    Ok(())
}

/// Qwen's shared expert is as wide as one that is routed, however many are asked for (`models/qwen3.py`).
fn shared(settings: &Settings<'_>, made: &mut Vec<Made>) -> Result<(), ImportError> {
    let width = made.iter().find(|made| made.key == "moe_intermediate_size").map(|made| made.value.clone());
    match (settings.integer("shared_experts")?.filter(|found| found.value > 0), width) {
        (Some(found), Some(width)) => made.push(Made::of("shared_expert_intermediate_size", width, &found)),
        _ => return Err(settings.wrong("shared_experts", "1 or more in a decoder of that kind", "1")),
    }
    Ok(())
}

/// GPT-3's heads share the width, and have keys of their own.
fn heads(settings: &Settings<'_>, made: &mut Vec<Made>) -> Result<(), ImportError> {
    let number = |key: &str| settings.integer(key).map(|found| found.map_or(0, |found| found.value));
    let (width, heads) = (number("base_emb_dim")?, number("base_num_query_heads")?);
    for (key, expected) in [("base_num_kv_heads", heads), ("head_dim", width / heads.max(1))] {
        if number(key)? != expected {
            return Err(settings.wrong(key, &format!("{expected} in a decoder of gpt3"), &expected.to_string()));
        }
    }
    let gelu = Why::code("models/gpt3.py: GELU in its tanh form");
    made.push(Made { key: "activation_function", value: "gelu_new".into(), why: gelu, stated: false });
    Ok(())
}
