//! Keys of a scenario being gathered, and their text.

use std::fmt::Write as _;

use serde_json::Value;
use toml::{Table as Keys, Value as Key};

use super::Assumption;
use crate::receipt::table::{Rule, word};
use crate::scenario::keys::{TABLES, table};

/// Keys being gathered, each with the source of an assumption.
#[derive(Default)]
pub(super) struct Gathered(Vec<(String, Key, Option<String>)>);

impl Gathered {
    /// Writes a key, over what it had; a source marks an assumption.
    pub(super) fn put(&mut self, key: &str, value: impl Into<Key>, source: Option<String>) {
        self.0.retain(|(known, _, _)| known != key);
        self.0.push((key.to_owned(), value.into(), source));
    }

    /// Writes a key that the row states.
    pub(super) fn stated(&mut self, key: &str, value: impl Into<Key>) {
        self.put(key, value, None);
    }

    /// Writes what is left out of the simulation, if anything is.
    pub(super) fn left_out(&mut self, switches: Vec<String>) {
        if !switches.is_empty() {
            self.stated("framework.not_simulated", switches);
        }
    }

    /// Writes what a rule sets.
    pub(super) fn apply(&mut self, rule: &Rule, row: &Value) {
        flatten("", &rule.set, &mut |key, value| {
            let source = (!rule.stated).then(|| rule.source.clone());
            // "$field": what the row has there.
            let field = value.as_str().and_then(|text| text.strip_prefix('$'));
            match field.map(|field| word(row, field)) {
                Some(Some(word)) => {
                    let own = field.and_then(|field| number(row, field).or_else(|| words(row, field)));
                    self.put(key, own.unwrap_or_else(|| value_of(word)), source);
                }
                Some(None) => {}
                None => self.put(key, value.clone(), source),
            }
        });
    }

    /// A key's value.
    pub(super) fn get(&self, key: &str) -> Option<&Key> {
        self.0.iter().find(|(known, _, _)| known == key).map(|(_, value, _)| value)
    }

    /// Takes a key out.
    pub(super) fn take(&mut self, key: &str) -> Option<Key> {
        let at = self.0.iter().position(|(known, _, _)| known == key)?;
        Some(self.0.remove(at).1)
    }

    /// Drops what a framework's pipeline is like where the run has one stage, and how exchanges in bulk run where a model's
    /// recipe has none. Buckets have no size where gradients are neither sharded nor reduced beside the backward.
    pub(super) fn without_idle(&mut self) {
        if self.get("megatron.tp_comm_overlap").and_then(Key::as_bool) == Some(false) {
            self.0.retain(|(key, _, _)| key == "megatron.tp_comm_overlap" || !key.starts_with("megatron.tp_comm_"));
        }
        let off = |key: &str| self.get(key).and_then(Key::as_bool) == Some(false);
        if off("megatron.distributed_optimizer") && off("megatron.overlap_grad_reduce") {
            self.0.retain(|(key, _, _)| key != "megatron.bucket_size");
        }
        if self.get("mesh.pp").and_then(Key::as_integer) == Some(1) {
            self.0.retain(|(key, _, _)| !key.starts_with("pipeline."));
        }
    }

    /// Names of the keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _, _)| key.as_str())
    }

    /// Those that the row does not state.
    pub(super) fn assumptions(&self) -> Vec<Assumption> {
        let with_source = self.0.iter().filter_map(|(key, value, source)| Some((key, value, source.as_ref()?)));
        with_source
            .map(|(key, value, source)| Assumption { key: key.clone(), value: value.clone(), source: source.clone() })
            .collect()
    }

    /// The scenario's text.
    pub(super) fn text(&self, comment: &str) -> String {
        let mut out = format!("{comment}\n");
        for table in TABLES.map(|table| table.name) {
            let mut keys: Vec<_> = self.0.iter().filter(|(key, _, _)| split(key).0 == table).collect();
            keys.sort_by_key(|(key, _, _)| rank(key));
            if keys.is_empty() {
                continue;
            }
            if !table.is_empty() {
                let _ = write!(out, "\n[{table}]");
            }
            out.push('\n');
            for (key, value, source) in keys {
                let _ = write!(out, "{} = {value}", split(key).1);
                match source {
                    Some(source) => {
                        let _ = writeln!(out, "  # assumed: {source}");
                    }
                    None => out.push('\n'),
                }
            }
        }
        out
    }
}

/// A number with a point, where the row has one there and not a word that looks like one.
fn number(row: &Value, field: &str) -> Option<Key> {
    let value = field.split('.').try_fold(row, |value, part| value.get(part))?;
    value.as_f64().filter(|_| value.is_f64()).filter(|number| number.fract() != 0.0).map(Key::Float)
}

/// A list of words, where the row has one there.
fn words(row: &Value, field: &str) -> Option<Key> {
    let list = field.split('.').try_fold(row, |value, part| value.get(part))?.as_array()?;
    list.iter()
        .map(|word| word.as_str().map(|word| Key::String(word.to_owned())))
        .collect::<Option<_>>()
        .map(Key::Array)
}

/// A word of a row as a key's value.
fn value_of(word: String) -> Key {
    if let Ok(whole) = word.parse() {
        return Key::Integer(whole);
    }
    word.parse().map_or(Key::String(word), Key::Boolean)
}

/// Keys of the first table come in the order people write them.
fn rank(key: &str) -> usize {
    ["description", "runtime", "topology.name", "model.name"].iter().position(|known| *known == key).unwrap_or(9)
}

/// A model's own keys, each a key of the scenario.
const CONFIG: &str = "model.config";

/// `"table.key"` of each value; an inline table stays one value unless the scenario has a table of that name.
fn flatten(prefix: &str, keys: &Keys, put: &mut dyn FnMut(&str, &Key)) {
    for (name, value) in keys {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Key::Table(inner) if key == CONFIG || prefix.is_empty() && !name.is_empty() && table(name).is_some() => {
                flatten(&key, inner, put)
            }
            value => put(&key, value),
        }
    }
}

fn split(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}
