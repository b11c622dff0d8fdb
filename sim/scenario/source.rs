//! What a scenario is read from: the text of a file, whose keys have places, or a draft's table, whose keys have none.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use toml::de::DeTable;
use toml::{Spanned, Table};

use super::written;
use crate::tables::{self, Node, Unread};

/// The keys of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Source<'t> {
    /// The text that places are in; a draft has none.
    text: Option<&'t str>,
    keys: Node<'t>,
    table: Cow<'t, Table>,
}

/// A table's name and the names of its keys; a place of 0..0 is none.
pub(super) struct Named {
    pub table: Spanned<String>,
    pub keys: Vec<Spanned<String>>,
}

impl<'t> Source<'t> {
    /// A file's text, if it is TOML.
    pub fn parse(text: &'t str) -> Result<Source<'t>, Unread> {
        Ok(Source::of(text, &tables::document(text)?))
    }

    /// Keys of a file's text.
    pub fn of(text: &'t str, keys: &Spanned<DeTable<'t>>) -> Source<'t> {
        let keys = Node::from(keys);
        Source { text: Some(text), table: Cow::Owned(keys.table().unwrap_or_default()), keys }
    }

    /// Keys of a draft.
    pub fn draft(table: &'t Table) -> Source<'t> {
        Source { text: None, keys: Node::from(table), table: Cow::Borrowed(table) }
    }

    /// Whether the keys have places.
    pub fn has_places(&self) -> bool {
        self.text.is_some()
    }

    /// The text that places are in; a draft's is empty.
    pub fn text(&self) -> &'t str {
        self.text.unwrap_or_default()
    }

    /// The scenario as written.
    pub fn written(&self) -> Result<written::Scenario, Unread> {
        written::Scenario::deserialize(&self.keys)
    }

    /// The same, with what it leaves out from a table of tables, at one place.
    pub fn written_over(&self, below: &Table, at: &Range<usize>) -> Result<written::Scenario, Unread> {
        written::Scenario::deserialize(&self.keys.over(&Node::from(below), at))
    }

    /// The keys with their values; none where a value is larger than any that is accepted.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The tables and the keys at the top, with the names of what is in them.
    pub fn named(&self) -> Vec<Named> {
        let tables = self.keys.keys().map(|(name, at, value)| Named {
            table: Spanned::new(at, name.to_owned()),
            keys: value.keys().map(|(name, at, _)| Spanned::new(at, name.to_owned())).collect(),
        });
        tables.collect()
    }
}
