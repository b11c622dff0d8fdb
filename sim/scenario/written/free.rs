//! Values without a place, read as those of a file are: what a draft is made of.
//!
//! A file's values carry their places ([`toml::Spanned`]). `toml` reads these from text alone, so a table that is changed would have
//! to be written out to be read. [`Free`] hands each value over with the place 0..0 instead. It accepts what `toml`'s own reader of
//! text accepts.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, VariantAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_spanned::de::{SpannedDeserializer, is_spanned};
use toml::Value;
use toml::de::Error;

/// A value without a place.
#[derive(Clone, Debug)]
pub(in crate::scenario) struct Free(pub Value);

impl<'de> IntoDeserializer<'de, Error> for Free {
    type Deserializer = Free;

    fn into_deserializer(self) -> Free {
        self
    }
}

impl<'de> Deserializer<'de> for Free {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Boolean(flag) => visitor.visit_bool(flag),
            Value::Integer(count) => visitor.visit_i64(count),
            Value::Float(number) => visitor.visit_f64(number),
            Value::String(text) => visitor.visit_string(text),
            Value::Datetime(_) => Err(Error::custom("no key takes a date or a time")),
            Value::Array(list) => visitor.visit_seq(SeqDeserializer::new(list.into_iter().map(Free))),
            Value::Table(keys) => {
                visitor.visit_map(MapDeserializer::new(keys.into_iter().map(|(key, value)| (key, Free(value)))))
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match is_spanned(name) {
            true => visitor.visit_map(SpannedDeserializer::new(self, 0..0)),
            false => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(word) => visitor.visit_enum(word.into_deserializer()),
            Value::Table(keys) if keys.len() > 1 => Err(Error::custom("wanted exactly 1 element, more than 1 element")),
            Value::Table(keys) => match keys.into_iter().next() {
                Some((word, value)) => visitor.visit_enum(Choice(word, Free(value))),
                None => Err(Error::custom("wanted exactly 1 element, found 0 elements")),
            },
            _ => Err(Error::custom("wanted string or table")),
        }
    }

    forward_to_deserialize_any! {
        bool u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 char str string seq bytes byte_buf map unit ignored_any
        unit_struct tuple_struct tuple identifier
    }
}

/// A choice that takes a value, `{ every = 2 }`.
struct Choice(String, Free);

impl<'de> EnumAccess<'de> for Choice {
    type Error = Error;
    type Variant = Free;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Free), Error> {
        let Choice(word, value) = self;
        Ok((seed.deserialize(word.into_deserializer())?, value))
    }
}

impl<'de> VariantAccess<'de> for Free {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        let empty = match &self.0 {
            Value::Array(list) => list.is_empty(),
            Value::Table(keys) => keys.is_empty(),
            Value::Boolean(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) | Value::Datetime(_) => false,
        };
        if empty { Ok(()) } else { Err(Error::custom("expected empty table")) }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }
}
