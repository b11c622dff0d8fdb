//! torchtitan's model flavors, as shipped models or as their config's keys (`tables/torchtitan-flavors.toml`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::Why;
use crate::tables;

/// What runs attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Attention {
    /// `scaled_dot_product_attention`.
    #[default]
    Sdpa,
    /// FlexAttention with a causal mask.
    Flex,
    /// FlexAttention with a mask that ends at documents.
    Documents,
}

use Attention::{Documents, Sdpa};

/// Flavors that differ in the shipped model alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flavors {
    /// torchtitan's names of the model.
    models: Vec<String>,
    /// Flavors, each with its shipped model; empty: the keys below are the whole config.
    flavors: BTreeMap<String, String>,
    #[serde(default)]
    attention: Attention,
    /// Keys of a `config.json`.
    #[serde(default)]
    config: toml::Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    flavor: Vec<Flavors>,
}

static FLAVORS: LazyLock<Vec<Flavors>> = LazyLock::new(|| {
    let file: File =
        tables::read(include_str!("../tables/torchtitan-flavors.toml")).expect("a test reads every flavor");
    file.flavor
});

/// Where their sizes are written.
const AT: &str = "torchtitan 0.2.2: torchtitan/models/";

/// Writes `[model]` and what the model's code is like.
pub fn model(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let name = settings.word("model.name")?;
    let flavor = settings.word("model.flavor")?;
    let (Some(name), Some(flavor)) = (name, flavor) else {
        return Err(settings.missing("model.name", "a model of torchtitan", "set model.name and model.flavor"));
    };
    let why = name.why.clone().and(&flavor.why);
    let Some(code) = put(out, &name.value, &flavor.value, &why) else {
        return Err(unknown(settings, &name.value, &flavor.value));
    };
    if code.attention != Sdpa {
        out.put("attention.backend", "flex", why.clone().so("its attn_type"));
    }
    if code.attention == Documents || code.varlen {
        let changes = "attention ends at documents: it takes less time than over whole sequences";
        out.without("model.flavor", &flavor.value, &flavor.why.to_string(), changes);
    }
    if code.varlen {
        out.put("attention.backend", "flash2", why.so("its attn_type is varlen"));
    }
    Ok(())
}

/// What a flavor's code is like.
struct Code {
    attention: Attention,
    varlen: bool,
}

/// Writes a flavor's model, and how its code writes rotary embeddings and experts; none if it is not known.
fn put(out: &mut Imported, name: &str, flavor: &str, why: &Why) -> Option<Code> {
    // Variants of a flavor differ in what runs attention alone.
    let variants = [("_flex_attn", Documents), ("_varlen_attn", Sdpa), ("_flex", Documents), ("_varlen", Sdpa)];
    let variant = variants.iter().find_map(|(end, attention)| Some((flavor.strip_suffix(end)?, *end, *attention)));
    let (base, end) = variant.map_or((flavor, ""), |(base, end, _)| (base, end));
    let of_model = FLAVORS.iter().filter(|flavors| flavors.models.iter().any(|model| model == name));
    let mut all =
        of_model.flat_map(|flavors| flavors.flavors.iter().map(move |(known, shipped)| (flavors, known, shipped)));
    let (flavors, known, shipped) = all.find(|(_, known, _)| known.eq_ignore_ascii_case(base))?;
    if !shipped.is_empty() {
        out.put("model.name", shipped.as_str(), why.clone());
    }
    for (key, value) in &flavors.config {
        out.put(&format!("model.config.{key}"), value.clone(), Why::code(format!("{AT}{name}/__init__.py, {known}")));
    }
    if name == "qwen3" {
        let at = "torchtitan 0.2.2: torchtitan/models/qwen3/model/model.py, rotate_half";
        out.put("framework.rope", "rotate_half", Why::code(at));
    }
    if out.model().is_some_and(|model| model.experts().is_some()) {
        let at = "torchtitan 0.2.2: torchtitan/models/moe/moe.py";
        out.put("framework.experts", "torchtitan", Why::code(at));
    }
    let attention = variant.map_or(flavors.attention, |(_, _, attention)| attention);
    Some(Code { attention, varlen: end.starts_with("_varlen") })
}

/// The model of a flavor of torchtitan's registry, as 0.3.0 names it; false if it is not known.
pub fn named(out: &mut Imported, name: &str, flavor: &str, why: &Why) -> bool {
    put(out, name, flavor, why).is_some()
}

/// Whether the model that was put has experts.
pub fn has_experts(out: &Imported) -> bool {
    out.model().is_some_and(|model| model.experts().is_some())
}

/// Layers of the model that was put.
pub fn layers(out: &Imported) -> Option<i64> {
    i64::try_from(out.model()?.layers.count()).ok()
}

/// Flavors of a model that are known.
fn known(name: &str) -> Vec<&'static str> {
    let of_model = FLAVORS.iter().filter(|flavors| flavors.models.iter().any(|model| model == name));
    of_model.flat_map(|flavors| flavors.flavors.keys().map(String::as_str)).collect()
}

fn unknown(settings: &Settings<'_>, name: &str, flavor: &str) -> ImportError {
    let of_model = known(name);
    if !of_model.is_empty() {
        let list = of_model.join(", ");
        let remedy = format!("set model.flavor to one of {list}, or write a scenario with model.huggingface");
        return settings.unsupported("model.flavor", format!("the flavor {flavor:?} of {name}"), &remedy);
    }
    let mut models: Vec<&str> = FLAVORS.iter().flat_map(|flavors| &flavors.models).map(String::as_str).collect();
    models.sort_unstable();
    models.dedup();
    let what = match name {
        "qwen3_next" => "linear attention (torchtitan's model \"qwen3_next\")".to_owned(),
        name => format!("torchtitan's model {name:?}"),
    };
    let remedy = format!("set model.name to one of {}, or write a scenario with model.huggingface", models.join(", "));
    settings.unsupported("model.name", what, &remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelConfig;

    /// torchtitan's own sizes of a flavor, as its sources have them.
    fn theirs(table: &str, flavor: &str) -> Option<serde_json::Value> {
        let text = include_str!("../../../tests/frameworks/defaults/torchtitan-0.2.2.json");
        let all: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        all["flavors"].get(format!("{table}.{flavor}")).cloned()
    }

    #[test]
    fn sizes_of_every_flavor_are_those_of_torchtitans_own_table() {
        let tables = [
            ("llama3", "llama3_args"),
            ("llama4", "llama4_args"),
            ("qwen3", "qwen3_args"),
            ("deepseek_v3", "deepseekv3_args"),
            ("gpt_oss", "gptoss_configs"),
        ];
        let mut compared = 0;
        for (name, table) in tables {
            for flavor in known(name) {
                let theirs = theirs(table, flavor).unwrap_or_else(|| panic!("{table} has no {flavor}"));
                let mut out = Imported::default();
                put(&mut out, name, flavor, &Why::code("a test")).expect("it is known");
                let model: ModelConfig = out.model().unwrap_or_else(|| panic!("{name} {flavor}: {:?}", out.entries));
                let number = |key: &str| theirs[key].as_u64();
                let heads = number("n_heads").expect("it has heads");
                let mut sizes = vec![
                    ("dim", model.width, number("dim")),
                    ("n_layers", model.layers.count(), number("n_layers")),
                    ("n_heads", model.heads(), Some(heads)),
                ];
                if theirs.get("kv_lora_rank").is_none() {
                    sizes.push(("n_kv_heads", model.kv_heads(), Some(number("n_kv_heads").unwrap_or(heads))));
                }
                // Words of these are the tokenizer's, which is none of the flavor's.
                if name != "llama4" {
                    sizes.push(("vocab_size", model.vocab, number("vocab_size")));
                }
                if let Some(experts) = model.experts() {
                    let of = &theirs["moe_args"];
                    // Classes' own defaults, where a flavor leaves a number out.
                    sizes.push(("num_experts", experts.count, of["num_experts"].as_u64().or(Some(8))));
                    let shared = of["num_shared_experts"].as_u64().unwrap_or(1) * experts.width;
                    sizes.push(("num_shared_experts", experts.shared, Some(shared)));
                    sizes.push(("top_k", experts.top_k, of["top_k"].as_u64().or(Some(1))));
                }
                for (key, ours, theirs) in sizes {
                    assert_eq!(Some(ours), theirs, "{name} {flavor}: {key}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 100, "{compared} sizes were compared");
    }
}
