//! `batch.documents` and `batch.packing`.

use serde::Deserialize;
use toml::Spanned;

/// How long the documents are that are packed into a sequence.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Documents {
    /// Tokens of each.
    Length(Spanned<i64>),
    /// Several lengths.
    Lengths(Vec<DocumentLength>),
    /// A lognormal distribution.
    Lognormal(Lognormal),
    /// The sum of the squares of a sequence's documents' lengths.
    Squares(Spanned<i64>),
}

/// A length, and how many of the documents have it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentLength {
    /// Tokens.
    pub length: Spanned<i64>,
    /// Share of the documents; shares need not add up to one.
    pub share: Spanned<f64>,
}

/// A lognormal distribution of lengths.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lognormal {
    /// Mean length in tokens.
    pub mean: Spanned<f64>,
    /// Standard deviation of the natural logarithm of lengths.
    pub sigma: Spanned<f64>,
}

/// What happens to a document that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// It goes into another sequence.
    Whole,
    /// It is cut at the sequence's end.
    Cut,
}
