//! Nodes as serde asks for them: one type for each of its roles, so that what is read is compiled once.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_spanned::de::is_spanned;

use super::{Kind, Node, Pair, Unread};

impl<'de> Deserializer<'de> for &Node<'_> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        let read = match &self.value {
            Kind::Flag(flag) => visitor.visit_bool(*flag),
            Kind::Count(count) => visitor.visit_i64(*count),
            Kind::Number(number) => visitor.visit_f64(*number),
            Kind::Text(text) => visitor.visit_str(text),
            Kind::Date(pair) => visitor.visit_map(Entries::of(std::slice::from_ref(pair))),
            Kind::List(list) => visitor.visit_seq(Elements(list.iter())),
            Kind::Table(pairs) => visitor.visit_map(Entries::of(pairs)),
            Kind::Beyond(what) => Err(Unread::invalid_type(Unexpected::Other(what), &visitor)),
        };
        read.map_err(|error| error.within(&self.at))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        match fields {
            &[start, end, value] if is_spanned(name) => visitor.visit_map(Entries::placed([start, end, value], self)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        visitor.visit_some(self).map_err(|error| error.within(&self.at))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Unread> {
        visitor.visit_newtype_struct(self).map_err(|error| error.within(&self.at))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        let read = match &self.value {
            Kind::Text(word) => visitor.visit_enum(Choice { word: Key { text: word, at: &self.at }, value: None }),
            Kind::Table(pairs) => match &pairs[..] {
                [Pair { key, at, value }] => {
                    visitor.visit_enum(Choice { word: Key { text: key, at }, value: Some(value) })
                }
                [] => Err(Unread::custom("wanted exactly 1 element, found 0 elements")),
                _ => Err(Unread::custom("wanted exactly 1 element, more than 1 element")),
            },
            _ => Err(Unread::custom("wanted string or table")),
        };
        read.map_err(|error| error.within(&self.at))
    }

    forward_to_deserialize_any! {
        bool u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 char str string seq bytes byte_buf map unit ignored_any
        unit_struct tuple_struct tuple identifier
    }
}

/// The values of a list.
struct Elements<'n, 't>(std::slice::Iter<'n, Node<'t>>);

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Unread;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unread> {
        self.0.next().map(|node| seed.deserialize(node).map_err(|error| error.within(&node.at))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The keys of a table; or the three, start, end and value, as which a value with its place is read.
enum Entries<'n, 't> {
    Table { left: std::slice::Iter<'n, Pair<'t>>, value: Option<&'n Node<'t>> },
    Placed { names: [&'static str; 3], given: usize, value: &'n Node<'t> },
}

impl<'n, 't> Entries<'n, 't> {
    fn of(pairs: &'n [Pair<'t>]) -> Entries<'n, 't> {
        Entries::Table { left: pairs.iter(), value: None }
    }

    fn placed(names: [&'static str; 3], value: &'n Node<'t>) -> Entries<'n, 't> {
        Entries::Placed { names, given: 0, value }
    }

    /// The next key, whose value is asked for next.
    fn key(&mut self) -> Option<Named<'n>> {
        match self {
            Entries::Table { left, value } => {
                let pair = left.next()?;
                *value = Some(&pair.value);
                Some(Named::Key(Key { text: &pair.key, at: &pair.at }))
            }
            Entries::Placed { names, given, .. } => names.get(*given).map(|name| Named::Part(name)),
        }
    }

    /// The value of the last key.
    fn value(&mut self) -> Cow<'n, Node<'t>> {
        match self {
            Entries::Table { value, .. } => Cow::Borrowed(value.expect("serde asks for a key first")),
            Entries::Placed { given, value, .. } => {
                let place = |byte: usize| {
                    let byte = i64::try_from(byte).expect("a text is shorter than 2^63 bytes");
                    Cow::Owned(Node { value: Kind::Count(byte), at: value.at.clone() })
                };
                *given += 1;
                match *given {
                    1 => place(value.at.start),
                    2 => place(value.at.end),
                    _ => Cow::Borrowed(*value),
                }
            }
        }
    }
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Unread;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unread> {
        self.key().map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unread> {
        let value = self.value();
        seed.deserialize(&*value).map_err(|error| error.within(&value.at))
    }
}

/// The name of an entry: a key, or a part of a value with its place.
#[derive(Clone, Copy)]
enum Named<'n> {
    Key(Key<'n>),
    Part(&'static str),
}

/// A key, or a choice's word, with its place.
#[derive(Clone, Copy)]
struct Key<'n> {
    text: &'n str,
    at: &'n Range<usize>,
}

impl<'de> Deserializer<'de> for Named<'_> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        match self {
            Named::Key(key) => visitor.visit_str(key.text).map_err(|error: Unread| error.within(key.at)),
            Named::Part(name) => visitor.visit_borrowed_str(name),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Unread> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        match self {
            Named::Key(word) => visitor.visit_enum(Choice { word, value: None }),
            Named::Part(_) => Err(Unread::custom("a place is no choice")),
        }
    }

    forward_to_deserialize_any! {
        bool u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 char str string seq bytes byte_buf map option unit ignored_any
        unit_struct tuple_struct tuple struct identifier
    }
}

/// A choice: a word, `"full"`, or one that takes a value, `{ every = 2 }`.
struct Choice<'n, 't> {
    word: Key<'n>,
    value: Option<&'n Node<'t>>,
}

impl<'de, 'n, 't> EnumAccess<'de> for Choice<'n, 't> {
    type Error = Unread;
    type Variant = Taken<'n, 't>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Taken<'n, 't>), Unread> {
        Ok((seed.deserialize(Named::Key(self.word))?, Taken(self.value)))
    }
}

/// What a choice takes.
struct Taken<'n, 't>(Option<&'n Node<'t>>);

impl<'n, 't> Taken<'n, 't> {
    fn value(self, expected: &'static str) -> Result<&'n Node<'t>, Unread> {
        self.0.ok_or_else(|| Unread::invalid_type(Unexpected::UnitVariant, &expected))
    }
}

impl<'de> VariantAccess<'de> for Taken<'_, '_> {
    type Error = Unread;

    fn unit_variant(self) -> Result<(), Unread> {
        let Some(node) = self.0 else { return Ok(()) };
        let found = match &node.value {
            Kind::List(list) if list.is_empty() => return Ok(()),
            Kind::Table(pairs) if pairs.is_empty() => return Ok(()),
            Kind::List(_) => return Err(Unread::custom("expected empty array").within(&node.at)),
            Kind::Table(_) => return Err(Unread::custom("expected empty table").within(&node.at)),
            Kind::Flag(_) => "boolean",
            Kind::Count(_) | Kind::Beyond(_) => "integer",
            Kind::Number(_) => "float",
            Kind::Text(_) => "string",
            Kind::Date(_) => "datetime",
        };
        Err(Unread::custom(format!("expected table, found {found}")).within(&node.at))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Unread> {
        seed.deserialize(self.value("newtype variant")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Unread> {
        self.value("tuple variant")?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Unread> {
        self.value("struct variant")?.deserialize_any(visitor)
    }
}
