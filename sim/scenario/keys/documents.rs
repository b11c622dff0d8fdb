//! `batch.documents` and `batch.packing`.

use serde::Deserialize;
use toml::Spanned;

words! {
    /// How long the documents are that are packed into a sequence.
    #[derive(Debug, Deserialize)]
    pub enum Documents {
        /// Tokens of each.
        Length(Spanned<i64>) = "length" of "N",
        /// Several lengths.
        Lengths(Vec<DocumentLength>) = "lengths" of "[…]",
        /// A lognormal distribution.
        Lognormal(Lognormal) = "lognormal" of "{…}",
        /// The sum of the squares of a sequence's documents' lengths.
        Squares(Spanned<i64>) = "squares" of "N",
    }
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

words! {
    /// What happens to a document that does not fit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
    pub enum Packing {
        /// It goes into another sequence.
        Whole = "whole",
        /// It is cut at the sequence's end.
        Cut = "cut",
    }
}
