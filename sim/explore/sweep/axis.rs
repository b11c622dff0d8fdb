//! One key and the values that it is given, as `--vary key=a,b,c` writes them.

use toml::Value;

use crate::explore::values::{UNSET, is_range, shown, split, value};
use crate::scenario::keys;

/// A key and its values.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) key: String,
    /// In the order in which they are written; none leaves the key to its default.
    pub(super) values: Vec<Option<Value>>,
}

/// Why `--vary` asks for no grid.
#[derive(Debug, thiserror::Error)]
pub enum AxisError {
    /// There is no key, or no values.
    #[error("--vary {written:?} names no values: write a key and its values, such as mesh.tp=1,2,4")]
    Values {
        /// As written.
        written: String,
    },
    /// No scenario has the key.
    #[error("--vary: {problem}; `windtunnel explain` lists the keys")]
    Key {
        /// Which, and what is near.
        problem: String,
    },
    /// It is a whole table.
    #[error("--vary: {table} is a table: vary keys of it, such as {table}.{key}")]
    Table {
        /// Its name.
        table: String,
        /// One of its keys.
        key: &'static str,
    },
    /// It is what a run has measured.
    #[error("--vary: {key} is what a run has measured, and no run of a sweep has been made")]
    Measured {
        /// The key.
        key: String,
    },
    /// A value is no TOML.
    #[error(
        "--vary {key}: {value} is no value of TOML: {why}; a bare word is text, lists are [1, 2], tables are {{a = 1}}"
    )]
    Value {
        /// The key.
        key: String,
        /// As written.
        value: String,
        /// What the parser said.
        why: String,
    },
    /// A value is empty.
    #[error("--vary {key}: a value is empty: write \"\" for empty text, or {UNSET} for the default")]
    Empty {
        /// The key.
        key: String,
    },
    /// A value is a range.
    #[error("--vary {key}: {value} is a range: write its values out, separated by commas")]
    Range {
        /// The key.
        key: String,
        /// As written.
        value: String,
    },
    /// A value stands twice.
    #[error("--vary {key} has {value} twice: write it once")]
    SameValue {
        /// The key.
        key: String,
        /// As a table shows it.
        value: String,
    },
    /// A key is varied twice.
    #[error("--vary: {key} is varied twice: write all of its values after one --vary, separated by commas")]
    SameKey {
        /// The key.
        key: String,
    },
    /// The grid is too large.
    #[error("the grid has {runs} runs, and a sweep {most} at most: name fewer values, or split the sweep")]
    TooMany {
        /// Runs asked for.
        runs: u128,
        /// The most there may be.
        most: u64,
    },
}

impl Axis {
    /// Reads `key=a,b,c`.
    pub(super) fn read(written: &str) -> Result<Axis, AxisError> {
        let none = || AxisError::Values { written: written.to_owned() };
        let (key, values) = written.split_once('=').ok_or_else(none)?;
        let key = key.trim().to_owned();
        named(&key)?;
        if values.trim().is_empty() {
            return Err(none());
        }
        let mut axis = Axis { key, values: vec![] };
        for text in split(values) {
            axis.add(text)?;
        }
        Ok(axis)
    }

    fn add(&mut self, text: &str) -> Result<(), AxisError> {
        let key = self.key.clone();
        if text.is_empty() {
            return Err(AxisError::Empty { key });
        }
        if is_range(text) {
            return Err(AxisError::Range { key, value: text.to_owned() });
        }
        let value = value(&key, text).map_err(|why| AxisError::Value {
            key: key.clone(),
            value: text.to_owned(),
            why: why.message().to_owned(),
        })?;
        if self.values.contains(&value) {
            return Err(AxisError::SameValue { key, value: shown(value.as_ref()) });
        }
        self.values.push(value);
        Ok(())
    }
}

/// Whether there is such a key, and a sweep may set it.
fn named(key: &str) -> Result<(), AxisError> {
    if let Some(table) = keys::table(key).filter(|table| !table.name.is_empty()) {
        let first = table.keys.first().map_or("", |key| key.name());
        return Err(AxisError::Table { table: key.to_owned(), key: first });
    }
    if let Some(problem) = keys::misnamed(key) {
        return Err(AxisError::Key { problem });
    }
    match key.starts_with("measured.") {
        true => Err(AxisError::Measured { key: key.to_owned() }),
        false => Ok(()),
    }
}

/// Whether each key is varied once. No key of a scenario lies in another.
pub(super) fn apart(axes: &[Axis]) -> Result<(), AxisError> {
    let again = axes.iter().enumerate().find(|(at, axis)| axes[..*at].iter().any(|other| other.key == axis.key));
    again.map_or(Ok(()), |(_, axis)| Err(AxisError::SameKey { key: axis.key.clone() }))
}
