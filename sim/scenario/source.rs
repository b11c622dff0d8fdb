//! What a scenario is read from: the text of a file, whose keys have places, or a draft's table, whose keys have none.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use toml::de::{DeTable, Deserializer, Error};
use toml::{Spanned, Table, Value};

use super::written::{self, Free};

/// The keys of a scenario.
#[derive(Clone, Debug)]
pub(super) enum Source<'t> {
    /// Those of a text, with their places in it.
    Text(&'t str, Spanned<DeTable<'t>>),
    /// Those of a draft.
    Draft(&'t Table),
}

/// A table's name and the names of its keys; a place of 0..0 is none.
pub(super) struct Named {
    pub table: Spanned<String>,
    pub keys: Vec<Spanned<String>>,
}

impl<'t> Source<'t> {
    /// A file's text, if it is TOML.
    pub fn parse(text: &'t str) -> Result<Source<'t>, Error> {
        Ok(Source::Text(text, DeTable::parse(text)?))
    }

    /// The text that places are in; a draft has none.
    pub fn text(&self) -> &'t str {
        match self {
            Source::Text(text, _) => text,
            Source::Draft(_) => "",
        }
    }

    /// The scenario as written.
    pub fn written(&self) -> Result<written::Scenario, Error> {
        match self {
            Source::Text(_, keys) => written::Scenario::deserialize(Deserializer::from(keys.clone())),
            Source::Draft(table) => written::Scenario::deserialize(Free(Value::Table((*table).clone()))),
        }
    }

    /// The keys with their values; none where a value is larger than any that is accepted.
    pub fn table(&self) -> Cow<'t, Table> {
        match self {
            Source::Text(_, keys) => {
                Cow::Owned(Table::deserialize(Deserializer::from(keys.clone())).unwrap_or_default())
            }
            Source::Draft(table) => Cow::Borrowed(table),
        }
    }

    /// The tables and the keys at the top, with the names of what is in them.
    pub fn named(&self) -> Vec<Named> {
        let named = |name: &str, at: Range<usize>| Spanned::new(at, name.to_owned());
        match self {
            Source::Text(_, keys) => {
                let one = |(name, value): (&Spanned<_>, &Spanned<toml::de::DeValue<'_>>)| Named {
                    table: named(AsRef::<Cow<'_, str>>::as_ref(name), name.span()),
                    keys: (value.get_ref().as_table().into_iter().flat_map(DeTable::keys))
                        .map(|key| named(key.get_ref(), key.span()))
                        .collect(),
                };
                keys.get_ref().iter().map(one).collect()
            }
            Source::Draft(table) => {
                let one = |(name, value): (&String, &Value)| Named {
                    table: named(name, 0..0),
                    keys: (value.as_table().into_iter().flat_map(Table::keys)).map(|key| named(key, 0..0)).collect(),
                };
                table.iter().map(one).collect()
            }
        }
    }
}
