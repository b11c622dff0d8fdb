//! What mapping a row gives: a scenario with what was assumed, or the reason why there is none.

use serde::{Deserialize, Serialize};
use toml::Value;

/// Why a row is not checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// It is about something that its lane does not have.
    Outside(String),
    /// It should be covered, and is not.
    Uncovered(String),
    /// It states what cannot all be true.
    Contradiction(String),
    /// The program panicked: a bug of ours, not of the row.
    Panicked(String),
}

impl Reason {
    /// In words.
    pub fn words(&self) -> &str {
        match self {
            Reason::Outside(words)
            | Reason::Uncovered(words)
            | Reason::Contradiction(words)
            | Reason::Panicked(words) => words,
        }
    }
}

/// One key that the row does not state.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumption {
    /// The key, `table.key`.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it is known from.
    pub source: String,
}

/// A row as a scenario.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The scenario's text, with `[measured]` and the assumptions marked.
    pub text: String,
    /// What the row does not state.
    pub assumptions: Vec<Assumption>,
}
