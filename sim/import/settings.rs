//! A configuration as a flat map of its framework's own keys, each with its place, and typed access to them.
//!
//! A key that the configuration leaves out has the framework's default ([`Table`]). Keys that were asked for are remembered, so that the
//! others can be reported.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::error::ImportError;
use super::table::{Default, Table};
use super::why::{Found, Why};
use crate::near::did_you_mean;

/// Keys that are listed by name; of more the number is said.
const LISTED: usize = 200;

/// A key of the configuration, as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    /// The key, with dots between tables.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Its line, from 1; none on the command line.
    pub line: Option<usize>,
}

/// A key, under the name that the newest release has for it.
#[derive(Clone, Debug)]
struct Setting {
    written: String,
    value: Value,
    line: Option<usize>,
}

/// A source key that matters and is not modelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmodelled {
    /// The source key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `file:line`.
    pub place: String,
    /// What it would change.
    pub changes: String,
}

/// What nobody asked for.
#[derive(Debug, Default)]
pub struct Left {
    /// Matters and is not modelled.
    pub unmodelled: Vec<Unmodelled>,
    /// Not a key of the framework.
    pub unknown: Vec<String>,
    /// Without effect; those of one reason together, with it behind them.
    pub idle: Vec<String>,
}

/// The keys of a configuration.
#[derive(Debug)]
pub struct Settings<'s> {
    file: &'s str,
    table: &'s Table,
    version: String,
    of: String,
    basis: String,
    unknown: Option<String>,
    given: BTreeMap<String, Setting>,
    recipe: BTreeMap<String, Default>,
    asked: RefCell<BTreeSet<String>>,
}

/// A value as an error or a comment shows it.
pub fn shown(value: &Value) -> String {
    let written = value.to_string();
    match written.chars().count() > 80 {
        true => format!("{}…", written.chars().take(80).collect::<String>()),
        false => written,
    }
}

impl<'s> Settings<'s> {
    /// Settings of what was read; a later key stands over an earlier one of the same name.
    pub fn new(file: &'s str, table: &'s Table, raw: Vec<Raw>, version: Option<&str>) -> Settings<'s> {
        let unknown = version.filter(|asked| !table.versions.iter().any(|known| known == asked)).map(str::to_owned);
        let (version, basis) = table.version(version, raw.iter().map(|raw| raw.key.as_str()));
        let mut given = BTreeMap::new();
        for Raw { key, value, line } in raw {
            let (name, value) = match table.negated.get(&key) {
                Some(name) => (name.clone(), if value == Value::Bool(true) { Value::Bool(false) } else { value }),
                None => (table.name(&key).into_owned(), value),
            };
            given.insert(name, Setting { written: key, value, line });
        }
        let of = format!("{} {version}", table.framework);
        let (recipe, asked) = (BTreeMap::new(), RefCell::default());
        Settings { file, table, version, of, basis, unknown, given, recipe, asked }
    }

    /// The same over values that the framework's own recipe has, each with where that is written.
    #[must_use]
    pub fn over(self, recipe: BTreeMap<String, Default>) -> Settings<'s> {
        let named = recipe.into_iter().map(|(key, value)| (self.table.name(&key).into_owned(), value)).collect();
        Settings { recipe: named, ..self }
    }

    /// The file.
    pub fn file(&self) -> &str {
        self.file
    }

    /// The framework and its release.
    pub fn of(&self) -> &str {
        &self.of
    }

    /// The release that was asked for, where another one's defaults are taken for want of its own.
    pub fn unknown_release(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// The release.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// How the release is known.
    pub fn basis(&self) -> &str {
        &self.basis
    }

    fn place_of(&self, setting: &Setting) -> String {
        setting.line.map_or_else(|| "the command line".to_owned(), |line| format!("{}:{line}", self.file))
    }

    /// Where a setting is, without the file's folder: comments stand beside the whole path.
    fn comment_of(&self, setting: &Setting) -> String {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or(self.file);
        setting.line.map_or_else(|| "the command line".to_owned(), |line| format!("{name}:{line}"))
    }

    /// Where a key is, without the file's folder.
    pub fn comment(&self, key: &str) -> String {
        self.given.get(key).map_or_else(|| "by default".to_owned(), |setting| self.comment_of(setting))
    }

    /// `file:line` of a key, else the file.
    pub fn place(&self, key: &str) -> String {
        self.given.get(key).map_or_else(|| self.file.to_owned(), |setting| self.place_of(setting))
    }

    /// Whether the configuration has a key.
    pub fn states(&self, key: &str) -> bool {
        self.given.get(key).is_some_and(|setting| !setting.value.is_null())
    }

    /// Whether the configuration, or else the recipe below it, sets a key to nothing.
    pub fn says_null(&self, key: &str) -> bool {
        self.asked.borrow_mut().insert(key.to_owned());
        let recipe = || self.recipe.get(key).is_some_and(|default| default.value.is_null());
        self.given.get(key).map_or_else(recipe, |setting| setting.value.is_null())
    }

    /// Keys of the configuration that begin so, without marking them as asked for.
    pub fn beginning<'k>(&'k self, start: &'k str) -> impl Iterator<Item = &'k str> {
        self.given.keys().map(String::as_str).filter(move |key| key.starts_with(start))
    }

    /// A key's value: the configuration's, else the framework's default; none where that is none.
    pub fn value(&self, key: &str) -> Option<Found<Value>> {
        self.asked.borrow_mut().insert(key.to_owned());
        if let Some(setting) = self.given.get(key) {
            let why = Why::Stated { key: setting.written.clone(), place: self.comment_of(setting) };
            return (!setting.value.is_null()).then(|| Found { value: setting.value.clone(), why, stated: true });
        }
        let default = self.recipe.get(key).or_else(|| self.table.default(&self.version, key))?;
        let why = Why::Default { key: key.to_owned(), of: self.of.clone(), at: default.at.clone() };
        (!default.value.is_null()).then(|| Found { value: default.value.clone(), why, stated: false })
    }

    /// The error for a value that a key cannot have.
    pub fn wrong(&self, key: &str, expected: &str, remedy: &str) -> ImportError {
        let setting = self.given.get(key);
        let value = || self.value(key).map_or_else(|| "absent".to_owned(), |found| shown(&found.value));
        let found = setting.map_or_else(value, |setting| shown(&setting.value));
        let key = setting.map_or(key, |setting| &setting.written).to_owned();
        let place = setting.map_or_else(|| self.file.to_owned(), |setting| self.place_of(setting));
        ImportError::Value { place, key, found, expected: expected.to_owned(), remedy: remedy.to_owned() }
    }

    /// The error for a key that must be there.
    pub fn missing(&self, key: &str, expected: &str, remedy: &str) -> ImportError {
        let (file, key) = (self.file.to_owned(), key.to_owned());
        ImportError::Missing { file, key, expected: expected.to_owned(), remedy: remedy.to_owned() }
    }

    /// The error for a setting of a key that makes another program than any that is simulated.
    pub fn unsupported(&self, key: &str, what: impl Into<String>, remedy: &str) -> ImportError {
        ImportError::Unsupported { place: self.place(key), what: what.into(), remedy: remedy.to_owned() }
    }

    /// Whether a key was asked for.
    pub fn was_asked(&self, key: &str) -> bool {
        self.asked.borrow().contains(key)
    }

    /// A key's value, where it is another than the framework's own default.
    pub fn other_than_default(&self, key: &str) -> Option<Value> {
        let value = self.value(key)?.value;
        let default = self.table.default(&self.version, key).map(|default| &default.value);
        (!default.is_some_and(|default| alike(default, &value))).then_some(value)
    }

    /// What the recipe sets and nobody asked for, by what the framework's table says of it.
    pub fn left_of_recipe(&self) -> Vec<Unmodelled> {
        let asked = self.asked.borrow();
        let left = self.recipe.iter().filter(|(key, _)| !asked.contains(*key) && !self.given.contains_key(*key));
        let matters = left.filter_map(|(key, default)| {
            let (off, changes) = self.table.not_modelled(key)?;
            (!default.value.is_null() && !alike(&default.value, off)).then(|| Unmodelled {
                key: key.clone(),
                value: shown(&default.value),
                place: default.at.clone(),
                changes: changes.to_owned(),
            })
        });
        matters.collect()
    }

    /// A whole number, which may be written as text or as a number without a fraction.
    pub fn integer(&self, key: &str) -> Result<Option<Found<i64>>, ImportError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        let read = match &found.value {
            Value::String(text) => text.trim().replace('_', "").parse().ok(),
            Value::Number(number) => number.as_i64().or_else(|| whole(number.as_f64()?)),
            _ => None,
        };
        let value = read.ok_or_else(|| self.wrong(key, "a whole number", "the number as digits"))?;
        Ok(Some(found.with(value)))
    }

    /// A whole number above zero.
    pub fn count(&self, key: &str) -> Result<Option<Found<i64>>, ImportError> {
        let found = self.integer(key)?;
        match found {
            Some(found) if found.value < 1 => Err(self.wrong(key, "a whole number, 1 or more", "1 or more")),
            found => Ok(found),
        }
    }

    /// A whole number above zero that must be there.
    pub fn needed(&self, key: &str, remedy: &str) -> Result<Found<i64>, ImportError> {
        self.count(key)?.ok_or_else(|| self.missing(key, "a whole number, 1 or more", remedy))
    }

    /// A degree of parallelism: one where it is not said.
    pub fn degree(&self, key: &str) -> Result<Found<i64>, ImportError> {
        let one = || Found { value: 1, why: Why::code(format!("{key} is not said: one rank")), stated: false };
        Ok(self.count(key)?.unwrap_or_else(one))
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<Found<f64>>, ImportError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        let read = match &found.value {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_f64(),
        };
        let finite = read.filter(|number: &f64| number.is_finite());
        let value = finite.ok_or_else(|| self.wrong(key, "a number", "the number as digits"))?;
        Ok(Some(found.with(value)))
    }

    /// A flag: `true` or `false`, as text too.
    pub fn flag(&self, key: &str) -> Result<Option<Found<bool>>, ImportError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        let read = match &found.value {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Some(true),
                "false" | "0" | "no" | "off" => Some(false),
                _ => None,
            },
            Value::Number(number) if number.as_i64() == Some(0) => Some(false),
            Value::Number(number) if number.as_i64() == Some(1) => Some(true),
            _ => None,
        };
        let value = read.ok_or_else(|| self.wrong(key, "true or false", "true or false"))?;
        Ok(Some(found.with(value)))
    }

    /// Whether a flag is set.
    pub fn is_set(&self, key: &str) -> Result<bool, ImportError> {
        Ok(self.flag(key)?.is_some_and(|found| found.value))
    }

    /// A word, which may be written as a number.
    pub fn word(&self, key: &str) -> Result<Option<Found<String>>, ImportError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        let value = match &found.value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => return Err(self.wrong(key, "a word", "the word in quotes")),
        };
        Ok(Some(found.with(value)))
    }

    /// A word out of a few, with what it stands for.
    pub fn choice<T: Clone>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<Found<T>>, ImportError> {
        let Some(found) = self.word(key)? else { return Ok(None) };
        let chosen = choices.iter().find(|(word, _)| *word == found.value);
        let names: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        let expected = format!("one of {}", names.join(", "));
        let (_, value) = chosen.ok_or_else(|| self.wrong(key, &expected, "one of these"))?;
        Ok(Some(found.with(value.clone())))
    }

    /// A list of words, which may be written with commas between them.
    pub fn words(&self, key: &str) -> Result<Option<Found<Vec<String>>>, ImportError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        let read: Option<Vec<String>> = match &found.value {
            Value::Array(list) => list.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
            Value::String(text) => {
                Some(text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect())
            }
            _ => None,
        };
        let value = read.ok_or_else(|| self.wrong(key, "a list of words", "[\"a\", \"b\"]"))?;
        Ok(Some(found.with(value)))
    }

    /// What nobody asked for, by what the framework's table says of it.
    pub fn left(&self) -> Left {
        let mut left = <Left as std::default::Default>::default();
        let asked = self.asked.borrow();
        let (mut unknown, mut idle) = (0, 0);
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (key, setting) in self.given.iter().filter(|(key, _)| !asked.contains(*key)) {
            if let Some((off, changes)) = self.table.not_modelled(key) {
                if !setting.value.is_null() && !alike(&setting.value, off) {
                    left.unmodelled.push(Unmodelled {
                        key: setting.written.clone(),
                        value: shown(&setting.value),
                        place: self.comment_of(setting),
                        changes: changes.to_owned(),
                    });
                    continue;
                }
            } else if !self.table.is_idle(key) && !self.table.defaults.contains_key(key) {
                unknown += 1;
                if unknown <= LISTED {
                    let near = did_you_mean(key, self.table.names());
                    left.unknown.push(format!("{} ({}){near}", setting.written, self.comment_of(setting)));
                }
                continue;
            }
            idle += 1;
            match self.table.why_idle(key) {
                _ if idle > LISTED => {}
                Some(why) => reasons.entry(why).or_default().push(&setting.written),
                None => left.idle.push(setting.written.clone()),
            }
        }
        left.idle.extend(reasons.into_iter().map(|(why, keys)| format!("{} ({why})", keys.join(", "))));
        for (list, all) in [(&mut left.unknown, unknown), (&mut left.idle, idle)] {
            if all > LISTED {
                list.push(format!("and {} more", all - LISTED));
            }
        }
        left
    }
}

/// A number without a fraction that a whole number holds exactly.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// Whether two values mean the same, as text or not.
fn alike(a: &Value, b: &Value) -> bool {
    let text = |value: &Value| match value {
        Value::String(text) => text.to_ascii_lowercase(),
        value => value.to_string(),
    };
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64()) || text(a) == text(b)
}
