//! A scenario with one thing changed.

use crate::scenario::{Draft, reason};

/// A scenario with one thing changed, or why it is none.
pub(super) struct Variant {
    /// The value, as written.
    pub name: String,
    /// The changed file, or why it is refused.
    pub draft: Result<Draft, String>,
    /// What else changed.
    pub note: Option<String>,
}

/// Keeps what is a scenario, and says of the rest why it is none.
pub(super) fn checked(name: &str, draft: Draft, note: Option<String>) -> Variant {
    let draft = match draft.scenario() {
        Ok(_) => Ok(draft),
        Err(error) => Err(reason(&error)),
    };
    Variant { name: name.to_owned(), note: note.filter(|_| draft.is_ok()), draft }
}
