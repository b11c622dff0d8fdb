//! What came of a configuration: scenario keys with where they come from, and what was left aside.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Value;

use super::error::ImportError;
use super::settings::{Settings, Unmodelled};
use super::why::{Found, Why};
use crate::model::ModelConfig;
use crate::model::huggingface::inline::{self, Base, Inline};
use crate::scenario::Scenario;

/// A scenario key with its value and where that comes from.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `table.key`.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it comes from.
    pub why: Why,
}

/// What came of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// The configuration's file.
    pub file: String,
    /// The framework and its release.
    pub of: String,
    /// How the release is known.
    pub basis: String,
    /// Keys, in the order that they were put.
    pub entries: Vec<Entry>,
    /// What is said of the whole, one sentence each.
    pub notes: Vec<String>,
    /// Source keys that matter and are not modelled.
    pub unmodelled: Vec<Unmodelled>,
    /// Source keys that the framework does not have, as `key (place)` and what may be meant.
    pub unknown: Vec<String>,
    /// Source keys without effect on time or memory.
    pub idle: Vec<String>,
}

impl Imported {
    /// Nothing yet, of a file's settings.
    pub fn of(settings: &Settings<'_>) -> Imported {
        let mut out = Imported {
            file: settings.file().to_owned(),
            of: settings.of().to_owned(),
            basis: settings.basis().to_owned(),
            ..Imported::default()
        };
        if let Some(release) = settings.unknown_release() {
            let why =
                format!("--version, whose defaults are not known: the interval is wider than with those of {}", out.of);
            out.put("framework.unknown_release", release, Why::code(why));
        }
        out
    }

    /// Writes a key, over what it had.
    pub fn put(&mut self, key: &str, value: impl Into<Value>, why: Why) {
        self.remove(key);
        self.entries.push(Entry { key: key.to_owned(), value: value.into(), why });
    }

    /// Writes a key as it was found, if it was.
    pub fn put_found<T: Into<Value>>(&mut self, key: &str, found: Option<Found<T>>) {
        if let Some(found) = found {
            self.put(key, found.value, found.why);
        }
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// A key's value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The model that was put so far: its name and keys of its config. None where there is none, or it cannot be read.
    pub fn model(&self) -> Option<ModelConfig> {
        let word = |key: &str| self.get(key).and_then(Value::as_str);
        let mut keys = serde_json::Map::new();
        for Entry { key, value, .. } in &self.entries {
            if let Some(key) = key.strip_prefix("model.config.") {
                keys.insert(key.to_owned(), inline::json(value));
            }
        }
        let base = match (word("model.name"), word("model.huggingface")) {
            (Some(name), _) => Base::Shipped(name),
            (None, Some(path)) => Base::File(Path::new(path)),
            (None, None) => Base::None,
        };
        inline::read(&Inline { file: &self.file, keys, lines: BTreeMap::new() }, base).ok()
    }

    /// A key's whole number, or one.
    pub fn degree(&self, key: &str) -> i64 {
        self.get(key).and_then(Value::as_integer).unwrap_or(1)
    }

    /// Says something of the whole.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Names something that matters and is not modelled.
    pub fn without(&mut self, key: &str, value: &str, place: &str, changes: impl Into<String>) {
        self.unmodelled.push(Unmodelled {
            key: key.to_owned(),
            value: value.to_owned(),
            place: place.to_owned(),
            changes: changes.into(),
        });
    }

    /// Sorts what nobody asked for into idle, not modelled and unknown.
    #[must_use]
    pub fn finish(mut self, settings: &Settings<'_>) -> Imported {
        let left = settings.left();
        self.unmodelled.extend(left.unmodelled);
        self.unknown.extend(left.unknown);
        self.idle.extend(left.idle);
        self
    }

    /// What is left out of the simulation, one sentence each: keys that matter, and keys that nobody knows.
    pub fn left_out(&self) -> Vec<String> {
        let unmodelled = self.unmodelled.iter().map(|left| format!("{} = {}: {}", left.key, left.value, left.changes));
        let unknown = self.unknown.iter().map(|key| format!("{key}: no key of {}", self.of));
        unmodelled.chain(unknown).collect()
    }

    /// Says what a scenario of it has no rules for, so that a run of it is refused; none if it can be run.
    pub fn not_simulated(&self, scenario: &Scenario) -> Option<String> {
        let why = scenario.simulable().err()?.to_string();
        Some(format!("A run of it is refused: {}.", why.lines().next().unwrap_or_default()))
    }

    /// The scenario, understood; or why it is refused.
    pub fn scenario(&self) -> Result<Scenario, ImportError> {
        let refused = |why| ImportError::Refused { file: self.file.clone(), why: Box::new(why) };
        Scenario::proofread(&format!("{} (imported)", self.file), &self.text()).map_err(refused)
    }
}
