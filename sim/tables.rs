//! Tables of keys, read into types: those of a file, whose values have places, and those that a program makes, whose have none.
//!
//! `toml` parses. Its own deserializers read a type in four ways: as a document, as a table, as a date, as a value with its place. So
//! each type was compiled four times, and once more for a draft's table, which no text has: that was an eighth of the build's time. Here is one
//! deserializer for all of them, over one tree of [`Node`]s. It accepts what `toml`'s accept, and says the same of what it refuses.

mod deserializer;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::budget;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// Reads a text of TOML.
///
/// # Errors
/// The first thing that is no TOML, or no `T`, with its place in the text.
pub fn read<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, Unread> {
    T::deserialize(&Node::parse(text)?)
}

/// A text of TOML as its own parser has it, if there is not too much of it.
///
/// # Errors
/// The first thing that is no TOML.
pub fn document(text: &str) -> Result<Spanned<DeTable<'_>>, toml::de::Error> {
    budget::toml(text).map_err(serde::de::Error::custom)?;
    DeTable::parse(text)
}

/// Why a text or a table is not read.
#[derive(Debug)]
pub struct Unread(Box<Said>);

#[derive(Debug)]
struct Said {
    message: String,
    at: Option<Range<usize>>,
}

impl Unread {
    /// What is wrong, without its place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The bytes of the text at which it is wrong.
    pub fn span(&self) -> Option<Range<usize>> {
        self.0.at.clone()
    }

    /// The same, at a place unless a value within has said its own.
    #[must_use]
    fn within(mut self, place: &Range<usize>) -> Unread {
        self.0.at.get_or_insert_with(|| place.clone());
        self
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Unread {}

impl serde::de::Error for Unread {
    fn custom<T: fmt::Display>(message: T) -> Unread {
        Unread(Box::new(Said { message: message.to_string(), at: None }))
    }
}

impl From<toml::de::Error> for Unread {
    fn from(error: toml::de::Error) -> Unread {
        Unread(Box::new(Said { message: error.message().trim_end().to_owned(), at: error.span() }))
    }
}

/// A value with its place, which is 0..0 where no text has it.
#[derive(Clone, Debug)]
pub struct Node<'t> {
    value: Kind<'t>,
    at: Range<usize>,
}

#[derive(Clone, Debug)]
enum Kind<'t> {
    Flag(bool),
    Count(i64),
    Number(f64),
    Text(Cow<'t, str>),
    /// One key, as `toml`'s own type of a date asks for.
    Date(Box<Pair<'t>>),
    List(Vec<Node<'t>>),
    Table(Vec<Pair<'t>>),
    /// A number that no type has room for.
    Beyond(&'static str),
}

/// A key of a table, with its own place and its value.
#[derive(Clone, Debug)]
struct Pair<'t> {
    key: Cow<'t, str>,
    at: Range<usize>,
    value: Node<'t>,
}

/// The key under which `toml`'s type of a date expects its text; a test holds that it does.
const DATE: &str = "$__toml_private_datetime";

impl<'t> Node<'t> {
    /// The table that a text is.
    ///
    /// # Errors
    /// The first thing that is no TOML, or that there is too much of it.
    pub fn parse(text: &'t str) -> Result<Node<'t>, Unread> {
        Ok(Node::from(&document(text)?))
    }

    /// The keys of a table with their places; none of another value.
    pub fn keys(&self) -> impl Iterator<Item = (&str, Range<usize>, &Node<'t>)> {
        let pairs = match &self.value {
            Kind::Table(pairs) => pairs.as_slice(),
            _ => &[],
        };
        pairs.iter().map(|pair| (&*pair.key, pair.at.clone(), &pair.value))
    }

    /// The table as plain keys and values; none where it is no table, or a number in it has no room in any type.
    pub fn table(&self) -> Option<Table> {
        match &self.value {
            Kind::Table(pairs) => pairs.iter().map(|pair| Some((pair.key.to_string(), pair.value.plain()?))).collect(),
            _ => None,
        }
    }

    /// The table with what it leaves out from another, tables within them key by key; what comes from there stands at one place.
    #[must_use]
    pub fn over(&self, below: &Node<'t>, at: &Range<usize>) -> Node<'t> {
        let (Kind::Table(own), Kind::Table(more)) = (&self.value, &below.value) else { return self.clone() };
        let mut pairs = own.clone();
        for pair in more {
            match pairs.iter_mut().find(|known| known.key == pair.key) {
                Some(known) => known.value = known.value.over(&pair.value, at),
                None => pairs.push(Pair { key: pair.key.clone(), at: at.clone(), value: pair.value.at(at) }),
            }
        }
        Node { value: Kind::Table(pairs), at: self.at.clone() }
    }

    /// The same value, all of it at one place.
    fn at(&self, at: &Range<usize>) -> Node<'t> {
        let value = match &self.value {
            Kind::List(list) => Kind::List(list.iter().map(|node| node.at(at)).collect()),
            Kind::Table(pairs) => Kind::Table(
                pairs
                    .iter()
                    .map(|pair| Pair { key: pair.key.clone(), at: at.clone(), value: pair.value.at(at) })
                    .collect(),
            ),
            other => other.clone(),
        };
        Node { value, at: at.clone() }
    }

    fn plain(&self) -> Option<Value> {
        Some(match &self.value {
            Kind::Flag(flag) => Value::Boolean(*flag),
            Kind::Count(count) => Value::Integer(*count),
            Kind::Number(number) => Value::Float(*number),
            Kind::Text(text) => Value::String(text.to_string()),
            Kind::Date(pair) => Value::Datetime(pair.value.text()?.parse().ok()?),
            Kind::List(list) => Value::Array(list.iter().map(Node::plain).collect::<Option<_>>()?),
            Kind::Table(_) => Value::Table(self.table()?),
            Kind::Beyond(_) => return None,
        })
    }

    fn text(&self) -> Option<&str> {
        match &self.value {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    fn date(date: String, at: Range<usize>) -> Kind<'t> {
        let value = Node { value: Kind::Text(date.into()), at: at.clone() };
        Kind::Date(Box::new(Pair { key: DATE.into(), at, value }))
    }
}

impl<'t> From<&Spanned<DeTable<'t>>> for Node<'t> {
    fn from(table: &Spanned<DeTable<'t>>) -> Node<'t> {
        Node { value: pairs(table.get_ref()), at: table.span() }
    }
}

fn pairs<'t>(table: &DeTable<'t>) -> Kind<'t> {
    let pair = |(key, value): (&Spanned<Cow<'t, str>>, &Spanned<DeValue<'t>>)| Pair {
        key: key.get_ref().clone(),
        at: key.span(),
        value: Node::from(value),
    };
    Kind::Table(table.iter().map(pair).collect())
}

impl<'t> From<&Spanned<DeValue<'t>>> for Node<'t> {
    fn from(value: &Spanned<DeValue<'t>>) -> Node<'t> {
        let at = value.span();
        let value = match value.get_ref() {
            DeValue::Boolean(flag) => Kind::Flag(*flag),
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
                .map_or(Kind::Beyond("a whole number of more than 64 bits"), Kind::Count),
            DeValue::Float(digits) => match digits.as_str().parse::<f64>() {
                Ok(number) if number.is_finite() || !digits.as_str().contains(|c: char| c.is_ascii_digit()) => {
                    Kind::Number(number)
                }
                _ => Kind::Beyond("a number beyond all that 64 bits have"),
            },
            DeValue::String(text) => Kind::Text(text.clone()),
            DeValue::Datetime(date) => Node::date(date.to_string(), at.clone()),
            DeValue::Array(list) => Kind::List(list.iter().map(Node::from).collect()),
            DeValue::Table(table) => pairs(table),
        };
        Node { value, at }
    }
}

impl<'t> From<&'t Table> for Node<'t> {
    fn from(table: &'t Table) -> Node<'t> {
        let pair = |(key, value): (&'t String, &'t Value)| Pair { key: key.into(), at: 0..0, value: Node::from(value) };
        Node { value: Kind::Table(table.iter().map(pair).collect()), at: 0..0 }
    }
}

impl<'t> From<&'t Value> for Node<'t> {
    fn from(value: &'t Value) -> Node<'t> {
        let value = match value {
            Value::Boolean(flag) => Kind::Flag(*flag),
            Value::Integer(count) => Kind::Count(*count),
            Value::Float(number) => Kind::Number(*number),
            Value::String(text) => Kind::Text(text.into()),
            Value::Datetime(date) => Node::date(date.to_string(), 0..0),
            Value::Array(list) => Kind::List(list.iter().map(Node::from).collect()),
            Value::Table(table) => return Node::from(table),
        };
        Node { value, at: 0..0 }
    }
}
