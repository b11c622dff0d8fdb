//! Where a scenario's key comes from.

use std::fmt;

/// Where a scenario's key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A key of the configuration.
    Stated {
        /// As the configuration writes it.
        key: String,
        /// `file:line`, or the command line.
        place: String,
    },
    /// The framework's own default.
    Default {
        /// The framework's key.
        key: String,
        /// The framework and its release.
        of: String,
        /// Where the default is written.
        at: String,
    },
    /// What follows from other keys, or from the framework's code.
    Follows(String),
}

impl Why {
    /// What the framework's code does, whatever its keys say.
    pub fn code(what: impl Into<String>) -> Why {
        Why::Follows(what.into())
    }

    /// This, and how the value follows from it.
    #[must_use]
    pub fn so(self, how: &str) -> Why {
        Why::Follows(format!("{self}: {how}"))
    }

    /// This and another.
    #[must_use]
    pub fn and(self, other: &Why) -> Why {
        Why::Follows(format!("{self}; {other}"))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Stated { key, place } => write!(f, "{key}, {place}"),
            Why::Default { key, of, at } => write!(f, "default of {key} in {of}, {at}"),
            Why::Follows(how) => f.write_str(how),
        }
    }
}

/// A value with where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub why: Why,
    /// Whether the configuration states it.
    pub stated: bool,
}

impl<T> Found<T> {
    /// The same with another value.
    pub fn with<U>(&self, value: U) -> Found<U> {
        Found { value, why: self.why.clone(), stated: self.stated }
    }
}
