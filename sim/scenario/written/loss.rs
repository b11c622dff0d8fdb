//! `[loss]`: which, in how many parts, and where it is computed.

use serde::Deserialize;
use toml::Spanned;

/// Which loss.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// Cross-entropy on logits cast to fp32.
    Fp32,
    /// Cross-entropy on logits as they are.
    Bf16,
    /// flash-attn's fused cross-entropy, on logits as they are.
    FlashCrossEntropy,
    /// Head by parts inside the model, loss by parts.
    ChunkedOutput,
    /// Head and loss by parts.
    ChunkedLinear,
    /// Head, loss and their backward by parts, inside the loss.
    ChunkedGradients,
    /// Head and log-probabilities over parts of the vocabulary.
    VocabularyChunked,
    /// Liger's fused linear cross-entropy.
    FusedLinear,
}

/// How long the loop's variable holds the logits.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum KeepLogits {
    /// Until the next forward has returned, or not at all.
    Flag(bool),
    /// Until backward is over.
    Until(Until),
}

/// Until when logits are held.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// Until backward is over.
    Backward,
}

/// `[loss]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Which.
    pub kind: Option<Spanned<LossKind>>,
    /// Parts of the sequence.
    pub chunks: Option<Spanned<i64>>,
    /// Words of a part of the vocabulary.
    pub words: Option<Spanned<i64>>,
    /// How long the loop's variable holds the logits.
    pub keep_logits: Option<KeepLogits>,
    /// Whether the model's forward computes the loss.
    pub inside_model: Option<Spanned<bool>>,
    /// Whether a loss by parts that makes gradients gathers the head's parameters itself (torchtitan 0.3.0).
    pub unshards_head: Option<Spanned<bool>>,
    /// Whether no variable names the logits, so that they go once they are cast: `F.cross_entropy(model(x).float(), y)`.
    pub unnamed_logits: Option<Spanned<bool>>,
}

fill!(Loss { kind, chunks, words, inside_model, unshards_head, unnamed_logits } { keep_logits });
