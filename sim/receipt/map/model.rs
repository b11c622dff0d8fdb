//! The model of a row: the shipped one that its name means, with the sizes that the row states.

use toml::Value as Key;

use super::Reason;
use super::keys::Gathered;
use crate::model::ModelConfig;
use crate::model::huggingface::shipped;
use crate::receipt::names::{self, Fit};
use crate::receipt::row::Row;

/// Families by the first word of a name, with the shipped model whose blocks they have.
const FAMILIES: [(&str, &str); 10] = [
    ("llama", "llama-3-8b"),
    ("codellama", "llama-2-7b"),
    ("mistral", "mistral-7b-v0.2"),
    ("qwen", "qwen2.5-7b"),
    ("gpt", "gpt-megatron-175b"),
    ("opt", "opt-6.7b"),
    ("gemma", "gemma-7b"),
    ("falcon", "falcon-7b"),
    ("nemotron", "nemotron-4-15b"),
    ("phi", "phi-3-mini"),
];

/// Writes the model that the name means.
pub(super) fn named(model: &Fit, keys: &mut Gathered) {
    if let Fit::One(shipped) = model {
        keys.stated("model.name", *shipped);
    }
}

/// Writes the sizes that the row states, over those of the model that it was matched to; without a match, over those of its family.
pub(super) fn sized(row: &Row, model: &Fit, keys: &mut Gathered) -> Result<(), Reason> {
    let stated = row.model.n_layers.and(row.model.hidden).and(row.model.n_heads).is_some();
    let name = row.model.name.as_deref().unwrap_or("");
    // A model that rules put together key by key.
    if keys.get("model.config.model_type").is_some() {
        let _ = keys.take("model.name");
        return Ok(());
    }
    if keys.get("model.name").is_none() {
        let family = names::words(name).first().and_then(|word| FAMILIES.iter().find(|(family, _)| family == word));
        match (model, family) {
            (Fit::Several(models), _) => {
                let alike: Vec<&str> = models.iter().copied().filter(|name| agrees(row, name)).collect();
                let [one] = alike[..] else {
                    return Err(Reason::Uncovered(format!("{name:?} fits several models: {}", models.join(", "))));
                };
                keys.stated("model.name", one);
            }
            (_, Some((family, shipped))) if stated => {
                let source = format!("the blocks of {family}'s, of the sizes that the row states");
                keys.put("model.name", *shipped, Some(source));
            }
            _ if stated && row.model.n_experts.is_none() => {
                let source = "no model is called so: the blocks of Llama, of the sizes that the row states";
                keys.put("model.name", "llama-3-8b", Some(source.to_owned()));
            }
            _ => {
                return Err(Reason::Uncovered(format!(
                    "no shipped model is called {name:?}, and its sizes are not stated"
                )));
            }
        }
    }
    let Some(base) = keys.get("model.name").and_then(Key::as_str).and_then(|name| shipped::named(name).ok()) else {
        return Ok(());
    };
    if let Some(what) = other_experts(row, &base) {
        return Err(Reason::Uncovered(what));
    }
    let own = &row.model;
    let dense = base.experts().is_none() && base.attention().is_some();
    // Another member of the family: all its sizes are its own.
    let other = own.hidden.is_some_and(|hidden| hidden != base.width);
    let taken = keys.get("model.heads").and_then(Key::as_integer).and_then(|heads| u64::try_from(heads).ok());
    let mut put = |key: &str, stated: Option<u64>, has: u64| {
        let key = format!("model.{key}");
        if let Some(stated) = stated.filter(|stated| *stated != has && keys.get(&key).is_none()) {
            keys.stated(&key, Key::Integer(stated as i64));
        }
    };
    put("layers", own.n_layers, base.layers.count());
    if dense {
        // Where the source has other heads than the row, the row's key-value heads are not its own either.
        let same_heads = taken.is_none_or(|heads| Some(heads) == own.n_heads);
        // As many as there are query heads is what the key's absence says.
        let same_heads = same_heads && !(own.n_kv_heads == own.n_heads && base.kv_heads() == base.heads());
        put("hidden", own.hidden, base.width);
        put("heads", own.n_heads, base.heads());
        put(
            "kv_heads",
            own.n_kv_heads
                .filter(|_| same_heads)
                .filter(|_| other || own.n_heads.is_some_and(|heads| heads != base.heads())),
            base.kv_heads(),
        );
        put("ffn", own.ffn.filter(|_| other), base.feed_forward_width());
        put("vocab", own.vocab.filter(|_| other), base.vocab);
    }
    Ok(())
}

/// Whether a shipped model has the sizes that a row states.
fn agrees(row: &Row, name: &str) -> bool {
    let same = |stated: Option<u64>, has: u64| stated.is_none_or(|stated| stated == has);
    shipped::named(name).is_ok_and(|model| {
        same(row.model.n_layers, model.layers.count())
            && same(row.model.hidden, model.width)
            && same(row.model.n_heads, model.heads())
            && same(row.model.vocab, model.vocab)
    })
}

/// Experts of other numbers or sizes than those of the model that the row was matched to.
fn other_experts(row: &Row, base: &ModelConfig) -> Option<String> {
    let stated = row.model.n_experts.filter(|experts| *experts > 1);
    match (stated, base.experts()) {
        (Some(stated), None) => Some(format!("{stated} experts, and {}, which it was matched to, has none", base.name)),
        (Some(stated), Some(experts)) if stated != experts.count => {
            Some(format!("{stated} experts, and {}, which it was matched to, has {}", base.name, experts.count))
        }
        _ => None,
    }
}
