//! What keys of each type take.

use toml::Spanned;

use super::ranks::Slow;
use super::row::{Choice, Kind};
use super::sharding::Reshard;
use crate::program::DType;
use crate::runtime::spmd::Keep;

/// A type of values in a scenario file.
pub(in crate::scenario) trait Takes {
    /// What a key of this type takes.
    const KIND: Kind;
    /// The words that a list of it may have; empty where they are not known.
    const WORDS: &'static [&'static str] = &[];
}

impl<T: Takes> Takes for Option<T> {
    const KIND: Kind = T::KIND;
    const WORDS: &'static [&'static str] = T::WORDS;
}

impl<T: Takes> Takes for Spanned<T> {
    const KIND: Kind = T::KIND;
    const WORDS: &'static [&'static str] = T::WORDS;
}

impl<T: Takes> Takes for Vec<T> {
    const KIND: Kind = Kind::List(T::WORDS);
}

impl Takes for bool {
    const KIND: Kind = Kind::Flag;
}

impl Takes for i64 {
    const KIND: Kind = Kind::Count(None);
}

impl Takes for f64 {
    const KIND: Kind = Kind::Number;
}

impl Takes for String {
    const KIND: Kind = Kind::Text;
}

impl Takes for toml::Value {
    const KIND: Kind = Kind::Other("a value");
}

impl Takes for DType {
    const KIND: Kind = Kind::Choice(&[
        Choice::Word("bf16"),
        Choice::Word("fp16"),
        Choice::Word("fp32"),
        Choice::Word("fp8"),
        Choice::Word("int32"),
        Choice::Word("int64"),
    ]);
}

impl Takes for Keep {
    const KIND: Kind = Kind::Choice(&[Choice::Word("remat"), Choice::Word("device"), Choice::Word("offload")]);
}

impl Takes for Reshard {
    const KIND: Kind = Kind::Other("true, false, or a number of ranks");
}

impl Takes for Slow {
    const KIND: Kind = Kind::Other("a rank with its pace, or a list of ranks with their paces");
}
