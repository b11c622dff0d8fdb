//! MaxText's models: named ones, as shipped ones or as keys of a config on one (`tables/maxtext-models.toml`), and base.yml's own,
//! whose sizes are keys.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::{Found, Why};
use crate::tables;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    shipped: BTreeMap<String, String>,
    resized: Vec<Resized>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resized {
    name: String,
    base: String,
    config: toml::Table,
}

static MODELS: LazyLock<Models> =
    LazyLock::new(|| tables::read(include_str!("../tables/maxtext-models.toml")).expect("a test reads every model"));

/// A key of base.yml, that of a Hugging Face config, and the power of two by which the first grows.
type Size = (&'static str, &'static str, fn(&Scales) -> u32);

/// Sizes of base.yml, each with the key of a Hugging Face config and what the global scale does to it.
const SIZES: [Size; 7] = [
    ("base_emb_dim", "hidden_size", |scales| scales.width),
    ("base_num_query_heads", "num_attention_heads", |scales| scales.heads),
    ("base_num_kv_heads", "num_key_value_heads", |scales| scales.heads),
    ("base_mlp_dim", "intermediate_size", |scales| scales.heads),
    ("base_num_decoder_layers", "num_hidden_layers", |scales| scales.layers),
    ("head_dim", "head_dim", |_| 0),
    ("vocab_size", "vocab_size", |_| 0),
];

/// Powers of two by which sizes grow with `global_parameter_scale`. Source: MaxText 0.2.5, `configs/types.py`,
/// `get_individual_scales`.
struct Scales {
    width: u32,
    heads: u32,
    layers: u32,
}

impl Scales {
    fn of(scale: i64) -> Option<Scales> {
        let scale = u64::try_from(scale).ok().filter(|scale| scale.is_power_of_two())?;
        let (whole, rest) = (scale.ilog2() / 3, scale.ilog2() % 3);
        Some(Scales { width: whole + u32::from(rest > 1), heads: whole + u32::from(rest > 0), layers: whole })
    }
}

/// Writes `[model]`: the one that `model_name` names, or base.yml's own by its sizes.
pub(super) fn model(out: &mut Imported, settings: &Settings<'_>, is_command: bool) -> Result<(), ImportError> {
    let name = settings.word("model_name")?.filter(|found| found.value != "default");
    let scale = settings.count("global_parameter_scale")?;
    let scales = scale.as_ref().map_or(Some(Scales { width: 0, heads: 0, layers: 0 }), |found| Scales::of(found.value));
    let scales = scales.ok_or_else(|| {
        settings.wrong("global_parameter_scale", "a power of two", "1, or sizes such as base_emb_dim=4096")
    })?;
    let Some(name) = name else { return own(out, settings, &scales) };
    if let Some(found) = scale.filter(|found| found.value > 1) {
        let changes = "another size than the named model's: memory and time";
        out.without("global_parameter_scale", &found.value.to_string(), &found.why.to_string(), changes);
    }
    if !put(out, &name) {
        let remedy = format!("set it to one of {}", known().join(", "));
        return Err(settings.unsupported("model_name", format!("MaxText's model {:?}", name.value), &remedy));
    }
    let allowed = settings.is_set("override_model_config")?;
    let mut beside = vec![];
    for (key, theirs, _) in SIZES {
        let Some(found) = settings.count(key)?.filter(|found| found.stated) else { continue };
        if is_command || settings.place(key) == "the command line" {
            out.put(&format!("model.config.{theirs}"), found.value, found.why);
            beside.push(key);
        } else {
            out.note(format!(
                "{key} of the file changes nothing: MaxText lays the sizes of {} over it. Set it on the command line, with override_model_config=True.",
                name.value
            ));
        }
    }
    if !beside.is_empty() && !allowed {
        out.note(format!(
            "MaxText refuses {} beside model_name where the model has another, unless override_model_config=True.",
            beside.join(", ")
        ));
    }
    out.put("description", format!("{}, MaxText", name.value), name.why);
    Ok(())
}

/// base.yml's own decoder, of Llama's kind or with Mixtral's experts.
fn own(out: &mut Imported, settings: &Settings<'_>, scales: &Scales) -> Result<(), ImportError> {
    let said = |key: &str| settings.states(key);
    if !said("global_parameter_scale") && !SIZES.iter().any(|(key, ..)| said(key)) {
        let remedy = "add model_name=llama3.1-8b, or sizes such as base_emb_dim=4096 of a model of your own";
        return Err(settings.missing("model_name", "the name of a model", remedy));
    }
    let block = settings.word("decoder_block")?.map_or_else(|| "llama2".to_owned(), |found| found.value);
    if !["llama2", "mistral", "mixtral"].contains(&block.as_str()) {
        let what = format!("decoder_block = {block:?} with sizes of one's own");
        return Err(settings.unsupported("decoder_block", what, "set it to llama2 or mixtral, or name a model"));
    }
    let gated = serde_json::json!(["silu", "linear"]);
    if settings.value("mlp_activations").is_some_and(|found| found.value != gated) {
        let what = "a feed-forward of base.yml's decoder by another function than SwiGLU";
        return Err(settings.unsupported("mlp_activations", what, "set it to [\"silu\", \"linear\"]"));
    }
    let experts = settings.count("num_experts")?.filter(|found| found.value > 1);
    let kind = if experts.is_some() { "mixtral" } else { "llama" };
    out.put("model.config.model_type", kind, Why::code(format!("decoder_block {block}, which is of that kind")));
    for (key, theirs, power) in SIZES {
        let Some(found) = settings.count(key)? else { continue };
        let power = power(scales);
        let factor = 1i64.checked_shl(power).unwrap_or(i64::MAX);
        let why = if power > 0 { found.why.so(&format!("times {factor} at that scale")) } else { found.why };
        out.put(&format!("model.config.{theirs}"), found.value.saturating_mul(factor), why);
    }
    if let Some(experts) = experts {
        out.put("model.config.num_local_experts", experts.value, experts.why);
        out.put_found("model.config.num_experts_per_tok", settings.count("num_experts_per_tok")?);
    }
    out.put_found("model.config.tie_word_embeddings", settings.flag("logits_via_embedding")?);
    out.put("description", "base.yml's own decoder, MaxText", Why::code("no model is named"));
    Ok(())
}

/// Writes the model of a name; false if it is not known.
pub fn put(out: &mut Imported, name: &Found<String>) -> bool {
    if let Some(shipped) = MODELS.shipped.get(&name.value) {
        out.put("model.name", shipped.as_str(), name.why.clone());
        return true;
    }
    let Some(resized) = MODELS.resized.iter().find(|resized| resized.name == name.value) else { return false };
    out.put("model.name", resized.base.as_str(), name.why.clone().so("a smaller or larger model of that family"));
    for (key, value) in &resized.config {
        let at = format!("MaxText 0.2.5: maxtext/configs/models/{}.yml", resized.name);
        out.put(&format!("model.config.{key}"), value.clone(), Why::code(at));
    }
    true
}

/// Names that are known.
pub fn known() -> Vec<&'static str> {
    let resized = MODELS.resized.iter().map(|resized| resized.name.as_str());
    MODELS.shipped.keys().map(String::as_str).chain(resized).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_with_the_global_scale_as_maxtexts_own_function_has_them() {
        // get_individual_scales(2), (4), (8) and (32) of MaxText 0.2.5.
        for (scale, powers) in [(1, [0, 0, 0]), (2, [0, 1, 0]), (4, [1, 1, 0]), (8, [1, 1, 1]), (32, [2, 2, 1])] {
            let scales = Scales::of(scale).expect("a power of two");
            assert_eq!([scales.width, scales.heads, scales.layers], powers, "{scale}");
        }
        assert!(Scales::of(3).is_none() && Scales::of(0).is_none());
    }

    #[test]
    fn sizes_of_every_model_are_those_of_maxtexts_own_table() {
        let text = include_str!("../../../tests/frameworks/defaults/maxtext-0.2.5.json");
        let all: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        for name in known() {
            let theirs = &all["models"][name];
            let mut out = Imported::default();
            let found = Found { value: name.to_owned(), why: Why::code("a test"), stated: true };
            assert!(put(&mut out, &found), "{name}");
            let model = out.model().unwrap_or_else(|| panic!("{name}: {:?}", out.entries));
            // Gemma 2's layers are pairs there.
            let pairs = if name.starts_with("gemma2") { 2 } else { 1 };
            let layers = theirs["base_num_decoder_layers"].as_u64().map(|layers| layers * pairs);
            let ours = [model.width, model.layers.count(), model.heads()];
            let keys = [theirs["base_emb_dim"].as_u64(), layers, theirs["base_num_query_heads"].as_u64()];
            assert_eq!(ours.map(Some), keys, "{name}");
        }
    }
}
