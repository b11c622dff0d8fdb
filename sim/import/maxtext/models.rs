//! MaxText's models, as shipped ones or as keys of a config on one (`tables/maxtext-models.toml`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::import::imported::Imported;
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
