//! Models of Megatron-LM's arguments with experts or latent attention, as keys of a `config.json`.

use toml::Value;

use super::sizes::{Sizes, put, put_found};
use super::{own, pattern};
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::{Found, Why};
use crate::model::huggingface::shipped;

/// The architecture whose config has these keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    DeepSeekV2,
    DeepSeekV3,
    Mixtral,
    Qwen3,
    Llama4,
}

impl Kind {
    fn model_type(self) -> &'static str {
        match self {
            Kind::DeepSeekV2 => "deepseek_v2",
            Kind::DeepSeekV3 => "deepseek_v3",
            Kind::Mixtral => "mixtral",
            Kind::Qwen3 => "qwen3_moe",
            Kind::Llama4 => "llama4_text",
        }
    }

    /// What it calls the number of experts.
    fn count(self) -> &'static str {
        match self {
            Kind::DeepSeekV2 | Kind::DeepSeekV3 => "n_routed_experts",
            Kind::Mixtral | Kind::Llama4 => "num_local_experts",
            Kind::Qwen3 => "num_experts",
        }
    }
}

/// Writes the model's config; its words are the caller's.
pub fn model(out: &mut Imported, settings: &Settings<'_>, sizes: Sizes) -> Result<(), ImportError> {
    let balancing = settings.word("moe_router_load_balancing_type")?;
    let evens = balancing.is_some_and(|found| found.value == "sinkhorn");
    let narrowed = settings.count("moe_latent_size")?.is_some();
    if !sizes.latent && (sizes.own || evens || narrowed) {
        return own::model(out, settings, sizes);
    }
    let width = settings.count("moe_ffn_hidden_size")?.unwrap_or_else(|| sizes.ffn.clone());
    let shared = settings.count("moe_shared_expert_intermediate_size")?;
    let sigmoid = settings.choice("moe_router_score_function", &[("softmax", false), ("sigmoid", true)])?;
    let is_sigmoid = sigmoid.as_ref().is_some_and(|found| found.value);
    let dense = pattern::dense_first(settings, sizes.layers.value)?;
    let kind = match (&shared, sizes.latent) {
        (_, true) if is_sigmoid => Kind::DeepSeekV3,
        (_, true) => Kind::DeepSeekV2,
        (Some(shared), false)
            if shared.value == width.value && dense.first == 0 && dense.every == 1 && !sizes.qk_norm =>
        {
            Kind::Llama4
        }
        (Some(_), false) => return own::model(out, settings, sizes),
        (None, false) if sizes.qk_norm || dense.first > 0 || dense.every > 1 => Kind::Qwen3,
        (None, false) => Kind::Mixtral,
    };
    let mut why = match (&sizes.experts, sizes.latent) {
        (Some(found), false) => found.why.clone(),
        _ => Why::code(format!("multi_latent_attention, {}", settings.comment("multi_latent_attention"))),
    };
    if let Some(found) = sigmoid.as_ref().filter(|found| found.stated) {
        why = why.and(&found.why);
    }
    put(out, "model_type", kind.model_type(), why.so("the architecture of a config.json that has these parts"));
    put(out, "num_hidden_layers", sizes.layers.value, sizes.layers.why.clone());
    put(out, "hidden_size", sizes.width.value, sizes.width.why.clone());
    put(out, "num_attention_heads", sizes.heads.value, sizes.heads.why.clone());
    put(out, "tie_word_embeddings", !sizes.untied, Why::code("untie_embeddings_and_output_weights"));
    if sizes.latent {
        latent(out, settings, &sizes)?;
    } else {
        let heads = || Found {
            value: sizes.heads.value,
            why: Why::code("no --group-query-attention: as many as heads"),
            stated: false,
        };
        let groups = sizes.groups.clone().unwrap_or_else(heads);
        put(out, "num_key_value_heads", groups.value, groups.why);
        let split = || {
            let value = sizes.width.value.checked_div(sizes.heads.value).unwrap_or(0);
            Found { value, why: Why::code("no --kv-channels: hidden over heads"), stated: false }
        };
        let channels = sizes.channels.clone().unwrap_or_else(split);
        put(out, "head_dim", channels.value, channels.why);
        if kind == Kind::Llama4 {
            put(out, "use_qk_norm", false, Why::code("no --qk-layernorm"));
        }
    }
    match &sizes.experts {
        Some(count) => experts(out, settings, kind, count, (width, shared, sizes.ffn.clone()), &dense)?,
        None => {
            put(out, "intermediate_size", sizes.ffn.value, sizes.ffn.why.clone());
            let none = Why::code("no --num-experts: all layers are dense");
            for (key, value) in [
                ("n_routed_experts", 1),
                ("num_experts_per_tok", 1),
                ("moe_intermediate_size", sizes.ffn.value),
                ("first_k_dense_replace", sizes.layers.value),
            ] {
                put(out, key, value, none.clone());
            }
        }
    }
    Ok(())
}

fn latent(out: &mut Imported, settings: &Settings<'_>, sizes: &Sizes) -> Result<(), ImportError> {
    put(out, "num_key_value_heads", sizes.heads.value, Why::code("latent attention: as many as heads"));
    match settings.count("q_lora_rank")? {
        Some(found) => put(out, "q_lora_rank", found.value, found.why),
        None => put(out, "q_lora_rank", "null", Why::code("no --q-lora-rank")),
    }
    for (key, source) in [
        ("kv_lora_rank", "kv_lora_rank"),
        ("qk_nope_head_dim", "qk_head_dim"),
        ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
        ("v_head_dim", "v_head_dim"),
    ] {
        put_found(out, key, settings.count(source)?);
    }
    Ok(())
}

/// Writes what the experts are like: of `widths`, that of a routed one, of the shared ones together, and of a dense layer.
fn experts(
    out: &mut Imported,
    settings: &Settings<'_>,
    kind: Kind,
    count: &Found<i64>,
    widths: (Found<i64>, Option<Found<i64>>, Found<i64>),
    dense: &pattern::Dense,
) -> Result<(), ImportError> {
    let (width, shared, ffn) = widths;
    put(out, kind.count(), count.value, count.why.clone());
    put_found(out, "num_experts_per_tok", settings.count("moe_router_topk")?);
    let early = settings.is_set("moe_router_pre_softmax")?;
    match kind {
        Kind::Mixtral => put(out, "intermediate_size", width.value, width.why.clone()),
        Kind::Llama4 => {
            put(out, "intermediate_size", width.value, width.why.clone());
            put(out, "interleave_moe_layer_step", dense.every, dense.why.clone());
            put(out, "intermediate_size_mlp", ffn.value, ffn.why);
        }
        Kind::Qwen3 => {
            if dense.every > 1 {
                out.note(format!(
                    "Of {} layers the last has experts here, and the first in Megatron-LM: as many layers have them.",
                    dense.every
                ));
            }
            put(out, "intermediate_size", ffn.value, ffn.why);
            put(out, "moe_intermediate_size", width.value, width.why.clone());
            put(out, "decoder_sparse_step", dense.every, dense.why.clone());
            let first: Vec<Value> = (0..dense.first).map(Value::Integer).collect();
            put(out, "mlp_only_layers", Value::Array(first), dense.why.clone());
            put(out, "norm_topk_prob", !early, Why::code("moe_router_pre_softmax"));
        }
        Kind::DeepSeekV2 | Kind::DeepSeekV3 => {
            put(out, "intermediate_size", ffn.value, ffn.why);
            put(out, "moe_intermediate_size", width.value, width.why.clone());
            put(out, "first_k_dense_replace", dense.first, dense.why.clone());
            put(out, "moe_layer_freq", dense.every, dense.why.clone());
            router(out, settings, kind, early)?;
            if let Some(found) = shared.as_ref() {
                if found.value % width.value != 0 {
                    let expected = format!("a multiple of the width of one expert, {}", width.value);
                    return Err(settings.wrong("moe_shared_expert_intermediate_size", &expected, "such a multiple"));
                }
                let how = format!("experts of {}", width.value);
                put(out, "n_shared_experts", found.value / width.value, found.why.clone().so(&how));
            }
        }
    }
    Ok(())
}

/// Writes how the router of a DeepSeek chooses.
fn router(out: &mut Imported, settings: &Settings<'_>, kind: Kind, early: bool) -> Result<(), ImportError> {
    let bias = settings.flag("moe_router_enable_expert_bias")?.filter(|found| found.value);
    let groups = settings.count("moe_router_num_groups")?;
    let kept = settings.count("moe_router_group_topk")?;
    let method = match (&bias, &groups) {
        (Some(found), _) => ("noaux_tc", found.why.clone()),
        (None, Some(found)) => ("group_limited_greedy", found.why.clone()),
        (None, None) => ("greedy", Why::code("no --moe-router-num-groups")),
    };
    put(out, "topk_method", method.0, method.1);
    put_found(out, "n_group", groups);
    put_found(out, "topk_group", kept);
    // Softmax over the chosen ones alone, and sigmoids divided by their sum, both add up to one.
    put(out, "norm_topk_prob", kind == Kind::DeepSeekV3 || !early, Why::code("moe_router_pre_softmax"));
    put_found(out, "routed_scaling_factor", settings.number("moe_router_topk_scaling_factor")?);
    Ok(())
}

/// Words of the shipped model with these experts and heads.
pub fn words_alike(out: &Imported) -> Option<(&'static str, u64)> {
    // Its own number of words is put last: any will do here.
    let mut whole = out.clone();
    whole.put("model.config.vocab_size", 1, Why::code("not known yet"));
    let model = whole.model()?;
    let fits = |name: &&str| {
        shipped::named(name).is_ok_and(|known| {
            let experts = |model: &crate::model::ModelConfig| {
                model.experts().map(|experts| (experts.count, experts.top_k, experts.width, experts.shared))
            };
            known.width == model.width && known.heads() == model.heads() && experts(&known) == experts(&model)
        })
    };
    let name = shipped::names().find(fits)?;
    Some((name, shipped::named(name).ok()?.vocab))
}
