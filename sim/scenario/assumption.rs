//! What a file leaves out: the value that was taken for each key, and remarks on the plan, in the order they came up.

use std::fmt;

use toml::Value;

/// A line of what the report lists as taken.
#[derive(Clone, Debug, PartialEq)]
pub enum Assumption {
    /// A value that was taken for a key.
    Taken(Taken),
    /// A remark, such as `note: …`, that stands for no key.
    Note(String),
}

/// A key that the file leaves out, and the value that was taken for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The key with its table, such as `batch.micro`.
    pub key: String,
    /// Its value.
    pub value: Written,
    /// Why this value, where the report says so.
    pub why: Option<String>,
}

/// A value as a person would write it.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// A value without keys of its own.
    Plain(Value),
    /// An inline table, its keys in the order that they are read in.
    Keys(Vec<(String, Value)>),
}

impl Assumption {
    /// What was taken, unless this is a note.
    pub fn taken(&self) -> Option<&Taken> {
        match self {
            Assumption::Taken(taken) => Some(taken),
            Assumption::Note(_) => None,
        }
    }

    /// The key, unless this is a note.
    pub fn key(&self) -> Option<&str> {
        self.taken().map(|taken| taken.key.as_str())
    }
}

impl Written {
    /// The value as TOML's own type.
    pub fn value(&self) -> Value {
        match self {
            Written::Plain(value) => value.clone(),
            Written::Keys(keys) => Value::Table(keys.iter().cloned().collect()),
        }
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Assumption::Taken(taken) => write!(f, "{taken}"),
            Assumption::Note(words) => write!(f, "{words}"),
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key, self.value)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // 1e-5, where TOML's own writer has 0.00001.
            Written::Plain(Value::Float(number)) => write!(f, "{number:?}"),
            Written::Plain(value) => write!(f, "{value}"),
            Written::Keys(keys) => {
                let one = |(key, value): &(String, Value)| format!("{key} = {}", Written::Plain(value.clone()));
                let keys: Vec<String> = keys.iter().map(one).collect();
                write!(f, "{{ {} }}", keys.join(", "))
            }
        }
    }
}

impl From<Value> for Written {
    fn from(value: Value) -> Written {
        Written::Plain(value)
    }
}

impl From<&str> for Written {
    fn from(word: &str) -> Written {
        Written::Plain(word.into())
    }
}

impl From<bool> for Written {
    fn from(flag: bool) -> Written {
        Written::Plain(flag.into())
    }
}

impl From<f64> for Written {
    fn from(number: f64) -> Written {
        Written::Plain(number.into())
    }
}

impl From<i32> for Written {
    fn from(number: i32) -> Written {
        Written::Plain(number.into())
    }
}

impl From<u64> for Written {
    fn from(count: u64) -> Written {
        // Counts are far below 2⁶³ (`limits.rs`).
        Written::Plain(Value::Integer(i64::try_from(count).unwrap_or(i64::MAX)))
    }
}

impl From<&[u64]> for Written {
    fn from(counts: &[u64]) -> Written {
        Written::Plain(Value::Array(counts.iter().map(|&count| Written::from(count).value()).collect()))
    }
}
