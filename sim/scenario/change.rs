//! A change of a scenario file: keys that are set or removed together. It is written as lines only to be printed.

use std::fmt;

use toml::Value;

/// Keys that are set or removed together, in the order in which a person would read them.
#[derive(Clone, Debug, PartialEq)]
pub struct Change(Vec<(String, Option<Value>)>);

impl Change {
    /// One key, `table.key`, that is set.
    pub fn set(key: &str, value: impl Into<Value>) -> Change {
        Change(vec![(key.to_owned(), Some(value.into()))])
    }

    /// One key, or a table, that is removed.
    pub fn remove(key: &str) -> Change {
        Change(vec![(key.to_owned(), None)])
    }

    /// This change and another together.
    #[must_use]
    pub fn and(mut self, other: Change) -> Change {
        self.0.extend(other.0);
        self
    }

    /// Each key with its new value; without one it is removed.
    pub fn keys(&self) -> impl Iterator<Item = (&str, Option<&Value>)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_ref()))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.keys().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match value {
                Some(value) => write!(f, "{comma}{key} = {value}")?,
                None => write!(f, "{comma}{key}")?,
            }
        }
        Ok(())
    }
}
