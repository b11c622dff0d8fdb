//! torchtitan's model flavors, as shipped models or as members of their families.
//!
//! Source: torchtitan 0.2.2, `torchtitan/models/{llama3,qwen3,deepseek_v3,gpt_oss}/__init__.py`.

use toml::Value;

use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::Why;
use crate::model::huggingface::shipped;

/// A flavor: torchtitan's model and flavor, the shipped model, and what attention of it is.
type Flavor = (&'static str, &'static str, &'static str, Attention);

/// What runs attention, where a flavor says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attention {
    /// `scaled_dot_product_attention`.
    Sdpa,
    /// FlexAttention with a causal mask.
    Flex,
    /// FlexAttention with a mask that ends at documents.
    Documents,
}

use Attention::{Documents, Flex, Sdpa};

const FLAVORS: [Flavor; 23] = [
    ("llama3", "8B", "llama-3.1-8b", Sdpa),
    ("llama3", "70B", "llama-3.1-70b", Sdpa),
    ("llama3", "405B", "llama-3.1-405b", Sdpa),
    ("llama3", "debugmodel", "llama-3.1-8b", Sdpa),
    ("llama3_ft", "8B", "llama-3.1-8b", Sdpa),
    ("llama3_ft", "70B", "llama-3.1-70b", Sdpa),
    ("llama3_ft", "405B", "llama-3.1-405b", Sdpa),
    ("llama3_ft", "debugmodel", "llama-3.1-8b", Sdpa),
    ("llama2", "7B", "llama-2-7b", Sdpa),
    ("llama2", "13B", "llama-2-13b", Sdpa),
    ("llama2", "70B", "llama-2-70b", Sdpa),
    ("qwen3", "0.6B", "qwen3-0.6b", Sdpa),
    ("qwen3", "1.7B", "qwen3-1.7b", Sdpa),
    ("qwen3", "4B", "qwen3-4b", Sdpa),
    ("qwen3", "8B", "qwen3-8b", Sdpa),
    ("qwen3", "14B", "qwen3-14b", Sdpa),
    ("qwen3", "32B", "qwen3-32b", Sdpa),
    ("qwen3", "30B-A3B", "qwen3-30b-a3b", Sdpa),
    ("qwen3", "235B-A22B", "qwen3-235b-a22b", Sdpa),
    ("deepseek_v3", "16B", "deepseek-v2-lite", Documents),
    ("deepseek_v3", "236B", "deepseek-v2", Documents),
    ("deepseek_v3", "671B", "deepseek-v3", Documents),
    ("gpt_oss", "20b", "gpt-oss-20b", Flex),
];

/// Sizes of Llama 3's `debugmodel`, on the shipped Llama 3.1 8B.
const DEBUG: [(&str, i64); 6] = [
    ("model.layers", 6),
    ("model.hidden", 256),
    ("model.heads", 16),
    ("model.kv_heads", 16),
    ("model.ffn", 768),
    ("model.vocab", 2048),
];

/// Writes `[model]` and what the model's code is like.
pub fn model(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let name = settings.word("model.name")?;
    let flavor = settings.word("model.flavor")?;
    let (Some(name), Some(flavor)) = (name, flavor) else {
        return Err(settings.missing("model.name", "a model of torchtitan", "set model.name and model.flavor"));
    };
    // Variants of a flavor differ in what runs attention alone.
    let variants = [("_flex_attn", Documents), ("_varlen_attn", Sdpa), ("_flex", Documents), ("_varlen", Sdpa)];
    let variant =
        variants.iter().find_map(|(end, attention)| Some((flavor.value.strip_suffix(end)?, *end, *attention)));
    let (base, end) = variant.map_or((flavor.value.as_str(), ""), |(base, end, _)| (base, end));
    let large = ("gpt_oss", "120b", "gpt-oss-120b", Flex);
    let found = FLAVORS
        .iter()
        .chain([&large])
        .find(|(model, known, ..)| *model == name.value && known.eq_ignore_ascii_case(base));
    let Some((_, _, shipped, attention)) = found else {
        return Err(unknown(settings, &name.value, &flavor.value));
    };
    let attention = variant.map_or(*attention, |(_, _, attention)| attention);
    let why = name.why.clone().and(&flavor.why);
    out.put("model.name", *shipped, why.clone());
    if base == "debugmodel" {
        let at = "torchtitan 0.2.2: torchtitan/models/llama3/__init__.py, llama3_args";
        DEBUG.iter().for_each(|(key, size)| out.put(key, *size, Why::code(at)));
    }
    if name.value == "qwen3" {
        let at = "torchtitan 0.2.2: torchtitan/models/qwen3/model/model.py, rotate_half";
        out.put("framework.rope", "rotate_half", Why::code(at));
    }
    if matches!(name.value.as_str(), "deepseek_v3" | "gpt_oss") || base.to_uppercase().contains("-A") {
        let at = "torchtitan 0.2.2: torchtitan/models/moe/moe.py";
        out.put("framework.experts", "torchtitan", Why::code(at));
    }
    if attention != Sdpa {
        out.put("attention.backend", "flex", why.clone().so("its attn_type"));
    }
    if attention == Documents || end.starts_with("_varlen") {
        let changes = "attention ends at documents: it takes less time than over whole sequences";
        out.without("model.flavor", &flavor.value, &flavor.why.to_string(), changes);
    }
    if end.starts_with("_varlen") {
        out.put("attention.backend", "flash2", why.so("its attn_type is varlen"));
    }
    Ok(())
}

/// Whether the shipped model that was put has experts.
pub fn has_experts(out: &Imported) -> bool {
    let name = out.get("model.name").and_then(Value::as_str).unwrap_or_default();
    shipped::named(name).is_ok_and(|model| model.experts().is_some())
}

/// Layers of the shipped model that was put.
pub fn layers(out: &Imported) -> Option<i64> {
    let name = out.get("model.name").and_then(Value::as_str)?;
    i64::try_from(shipped::named(name).ok()?.layers.count()).ok()
}

fn unknown(settings: &Settings<'_>, name: &str, flavor: &str) -> ImportError {
    let of_model: Vec<&str> =
        FLAVORS.iter().filter(|(model, ..)| *model == name).map(|(_, flavor, ..)| *flavor).collect();
    match of_model.is_empty() {
        true => {
            let remedy = "set model.name to llama2, llama3, qwen3, deepseek_v3 or gpt_oss, or write a scenario with model.huggingface";
            settings.unsupported("model.name", format!("torchtitan's model {name:?}"), remedy)
        }
        false => {
            let remedy = format!(
                "set model.flavor to one of {}, or write a scenario with model.huggingface",
                of_model.join(", ")
            );
            settings.unsupported("model.flavor", format!("the flavor {flavor:?} of {name}"), &remedy)
        }
    }
}
