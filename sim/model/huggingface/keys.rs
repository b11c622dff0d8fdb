//! Typed access to the keys of one JSON object, with errors that name the file, the key and what was expected.
//!
//! A key may have several names, the class's own first and its `attribute_map` aliases after. `null` counts as absent,
//! except to [`Keys::given`]. Keys that were asked for are remembered, so that the others can be reported.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::ModelError;
use super::limits::Limit;

/// Where keys are written.
#[derive(Clone, Copy)]
pub(super) enum Places<'c> {
    /// In the JSON of a file.
    Json(&'c str),
    /// On these lines of a scenario; a key that is not among them is the file's that the scenario names.
    Lines(&'c BTreeMap<String, usize>),
}

/// The keys of one object of a config.
pub(super) struct Keys<'c> {
    map: &'c Map<String, Value>,
    places: Places<'c>,
    file: &'c str,
    asked: RefCell<BTreeSet<String>>,
}

/// What a JSON value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A value as an error shows it: as written if short, else its kind.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => kind(value).to_string(),
        _ => {
            let written = value.to_string();
            if written.chars().count() > 60 { kind(value).to_string() } else { written }
        }
    }
}

/// The line of a key that is written exactly once.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let quoted = format!("\"{key}\"");
    let is_key = |at: usize| text.get(at + quoted.len()..).is_some_and(|rest| rest.trim_start().starts_with(':'));
    let mut hits = text.match_indices(&quoted).map(|(at, _)| at).filter(|at| is_key(*at));
    match (hits.next(), hits.next()) {
        (Some(at), None) => Some(1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count()),
        _ => None,
    }
}

impl<'c> Keys<'c> {
    /// The keys of `map`, which was read in `file`.
    pub fn new(map: &'c Map<String, Value>, places: Places<'c>, file: &'c str) -> Self {
        Keys { map, places, file, asked: RefCell::default() }
    }

    /// The file's name.
    pub fn file(&self) -> String {
        self.file.to_string()
    }

    /// Whether `key` is written, be it as `null`.
    pub fn given(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Whether a reader has asked for `key`.
    pub fn was_asked(&self, key: &str) -> bool {
        self.asked.borrow().contains(key)
    }

    /// Keys with a value that nobody has asked for.
    pub fn left(&self) -> impl Iterator<Item = (&'c str, &'c Value)> + '_ {
        let left = |(key, value): &(&'c String, &'c Value)| !value.is_null() && !self.was_asked(key);
        self.map.iter().filter(left).map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key` without marking it as asked for.
    pub fn peek(&self, key: &str) -> Option<&'c Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The first of `names` that has a value, and the value.
    fn find<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &'c Value)> {
        self.asked.borrow_mut().extend(names.iter().map(|name| name.to_string()));
        names.iter().find_map(|&name| Some((name, self.peek(name)?)))
    }

    /// `file:line` of `key` if it is written exactly once, else `file`.
    pub fn place(&self, key: &str) -> String {
        let line = match self.places {
            Places::Json(text) => line_of(text, key),
            Places::Lines(lines) => lines.get(key).copied(),
        };
        line.map_or_else(|| self.file(), |line| format!("{}:{line}", self.file))
    }

    /// The error for a missing `key`.
    pub fn missing(&self, key: &str, expected: &str, remedy: &str) -> ModelError {
        let (file, key) = (self.file(), key.to_string());
        ModelError::Missing { file, key, expected: expected.into(), remedy: remedy.into() }
    }

    /// The error for a `key` with the wrong `value`.
    pub fn wrong(&self, key: &str, value: &Value, expected: impl Into<String>) -> ModelError {
        let (place, key) = (self.place(key), key.to_string());
        ModelError::WrongValue { place, key, found: shown(value), expected: expected.into() }
    }

    /// The error for a `key` whose `value` makes a model that is not described.
    pub fn unsupported(&self, key: &str, value: &Value, why: &str, remedy: &str) -> ModelError {
        let what = format!("{key:?} is {}", shown(value));
        ModelError::Unsupported { place: self.place(key), what, why: why.into(), remedy: remedy.into() }
    }

    /// A size that may be absent.
    pub fn size_if(&self, names: &[&str], limit: Limit) -> Result<Option<u64>, ModelError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        match value.as_u64() {
            Some(size) if (1..=limit.most).contains(&size) => Ok(Some(size)),
            _ => Err(self.wrong(name, value, limit.to_string())),
        }
    }

    /// A size that must be there.
    pub fn size(&self, names: &[&str], limit: Limit) -> Result<u64, ModelError> {
        self.size_if(names, limit)?.ok_or_else(|| {
            let remedy = "it decides the model's size, so no default is taken: copy it from the model's config.json";
            self.missing(names.first().unwrap_or(&""), &limit.to_string(), remedy)
        })
    }

    /// A size with the default of the configuration class: an absent key; `null` gives `if_null`.
    pub fn size_or(&self, name: &str, limit: Limit, class_default: u64, if_null: u64) -> Result<u64, ModelError> {
        Ok(self.size_if(&[name], limit)?.unwrap_or(if self.given(name) { if_null } else { class_default }))
    }

    /// A boolean.
    pub fn flag(&self, name: &str, class_default: bool) -> Result<bool, ModelError> {
        match self.find(&[name]) {
            None => Ok(class_default),
            Some((_, Value::Bool(flag))) => Ok(*flag),
            Some((_, value)) => Err(self.wrong(name, value, "true or false")),
        }
    }

    /// A number that may be absent.
    pub fn number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.find(&[name]) {
            None => Ok(None),
            Some((_, value)) => value.as_f64().map(Some).ok_or_else(|| self.wrong(name, value, "a number")),
        }
    }

    /// A string that may be absent.
    pub fn word(&self, name: &str) -> Result<Option<&'c str>, ModelError> {
        match self.find(&[name]) {
            None => Ok(None),
            Some((_, value)) => value.as_str().map(Some).ok_or_else(|| self.wrong(name, value, "a string")),
        }
    }

    /// Marks a key as asked for.
    pub fn ask(&self, name: &str) {
        self.asked.borrow_mut().insert(name.to_string());
    }

    /// A list of whole numbers that may be absent.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<u64>>, ModelError> {
        let Some((_, value)) = self.find(&[name]) else { return Ok(None) };
        let numbers = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
        numbers.map(Some).ok_or_else(|| self.wrong(name, value, "a list of whole numbers"))
    }

    /// A list of strings that may be absent.
    pub fn words(&self, name: &str) -> Result<Option<Vec<&'c str>>, ModelError> {
        let Some((_, value)) = self.find(&[name]) else { return Ok(None) };
        let words = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        words.map(Some).ok_or_else(|| self.wrong(name, value, "a list of strings"))
    }

    /// The keys of a nested object; none if it is absent.
    pub fn section(&self, name: &str) -> Result<Option<Keys<'c>>, ModelError> {
        match self.find(&[name]) {
            None => Ok(None),
            Some((_, Value::Object(map))) => Ok(Some(Keys::new(map, self.places, self.file))),
            Some((_, value)) => Err(self.wrong(name, value, "an object {…}")),
        }
    }
}
