//! `[loss]`: which, in how many parts, and where it is computed.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{DDP, INTERNEVO, MEGATRON, MODULES, NANOTRON, PYTORCH, PYTORCH_BUT_DDP, TORCH_XLA, XLA, ZERO};
use super::row::Kind::Other;
use super::row::between;

words! {
    /// Which loss.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum LossKind {
        /// Cross-entropy on logits cast to fp32.
        Fp32 = "fp32",
        /// Cross-entropy on logits as they are.
        Bf16 = "bf16",
        /// flash-attn's fused cross-entropy, on logits as they are.
        FlashCrossEntropy = "flash_cross_entropy",
        /// Head by parts inside the model, loss by parts.
        ChunkedOutput = "chunked_output",
        /// Head and loss by parts.
        ChunkedLinear = "chunked_linear",
        /// Head, loss and their backward by parts, inside the loss.
        ChunkedGradients = "chunked_gradients",
        /// Head and log-probabilities over parts of the vocabulary.
        VocabularyChunked = "vocabulary_chunked",
        /// Liger's fused linear cross-entropy.
        FusedLinear = "fused_linear",
    }
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

keys! {
    /// The loss.
    #[derive(Debug, Default, Deserialize)]
    ["loss"] Loss in Rest.instead(&[
        (DDP, "nothing is sharded: remove the key"),
        (MEGATRON, "write megatron.cross_entropy_loss_fusion"),
        (ZERO, "the module computes its loss itself, so logits go with it: remove the key"),
        (INTERNEVO, "it is flash-attention's cross-entropy: remove the table"),
        (NANOTRON, "it is its own cross-entropy over split words: remove the table"),
        (TORCH_XLA, "it is F.cross_entropy over logits in fp32: remove the table"),
        (XLA, "write xla.num_vocab_tiling to take the loss in parts"),
    ]);

    /// Which loss, and in how many parts. fp32: on logits cast to fp32. bf16: on logits as they are.
    /// flash_cross_entropy: flash-attn's kernel. chunked_output: the head by parts inside the model. chunked_linear:
    /// head and loss by parts. chunked_gradients: their backward too. vocabulary_chunked: by parts of the vocabulary.
    /// fused_linear: Liger's head and loss in one, which never holds all logits.
    kind: Option<Spanned<LossKind>> => MODULES
        default MODULES => "\"fp32\"" of "torchtitan 0.2.2; torchtitan 0.3.0" at "torchtitan/components/loss.py (0.2.2); models/llama3/config_registry.py llama3_8b (0.3.0)";
    /// Parts of the sequence.
    chunks: Option<Spanned<i64>> as between(1, 1 << 16) => MODULES.such_as("8");
    /// Words of a part of the vocabulary.
    words: Option<Spanned<i64>> as between(1, 1 << 20) => MODULES.such_as("32768");
    /// How long the training loop's variable holds the logits.
    keep_logits: Option<KeepLogits> as Other("true, false, or \"backward\"") => PYTORCH.such_as("\"backward\"");
    /// Whether the model's forward computes the loss.
    inside_model: Option<Spanned<bool>> => PYTORCH;
    /// Whether a loss by parts that makes gradients gathers the head's parameters itself (torchtitan 0.3.0).
    unshards_head: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
    /// Whether no variable names the logits, so that they go once they are cast: `F.cross_entropy(model(x).float(),
    /// y)`.
    unnamed_logits: Option<Spanned<bool>> => PYTORCH;
}
