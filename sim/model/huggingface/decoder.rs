//! What the architectures have in common: the names of their sizes, head dimension, rotary dimensions, activations.

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;
use super::limits::{FFN, HEAD_DIM, HEADS, LAYERS, VOCAB, WIDTH};
use crate::model::{Activation, Dropout, FeedForward, ModelConfig, Norm, NormPlacement, Position};

/// What an architecture calls its sizes: its own name first, then aliases.
pub(super) struct Names {
    pub width: &'static [&'static str],
    pub layers: &'static [&'static str],
    pub heads: &'static [&'static str],
    pub vocab: &'static [&'static str],
}

/// The names of most architectures.
pub(super) const COMMON: Names = Names {
    width: &["hidden_size"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    vocab: &["vocab_size"],
};

/// A model with the sizes of `names`, feed-forward width `ffn` and head dimension width / heads, and otherwise plain:
/// as many key-value heads as query heads, RMS norms before each part, SiLU-gated feed-forward, no biases, own head.
/// A reader overrides what differs.
pub(super) fn plain(keys: &Keys<'_>, names: &Names, ffn: u64) -> Result<ModelConfig, ModelError> {
    sized(keys, names, ffn, None)
}

/// [`plain`] with a head dimension of its own, if there is one.
pub(super) fn sized(
    keys: &Keys<'_>,
    names: &Names,
    ffn: u64,
    head_dim: Option<u64>,
) -> Result<ModelConfig, ModelError> {
    let width = keys.size(names.width, WIDTH)?;
    let heads = keys.size(names.heads, HEADS)?;
    Ok(ModelConfig {
        name: String::new(),
        layers: keys.size(names.layers, LAYERS)?,
        width,
        heads,
        kv_heads: heads,
        head_dim: head_dim.map_or_else(|| split_width(keys, width, heads), Ok)?,
        ffn,
        experts: None,
        latent: None,
        sinks: false,
        vocab: keys.size(names.vocab, VOCAB)?,
        norm: Norm::Rms,
        norm_placement: NormPlacement::Pre,
        final_norm: true,
        embedding_norm: false,
        position: Position::None,
        feed_forward: FeedForward::Gated(Activation::Silu),
        qkv_bias: false,
        output_bias: false,
        ffn_bias: false,
        fused_qkv: false,
        qk_norm: None,
        tied_head: false,
        sliding_window: None,
        global_every: 0,
        context: None,
        attention_softcap: false,
        logit_softcap: false,
        predicts_ahead: 0,
        scaled_embedding: false,
        dropout: Dropout::default(),
        model_type: "",
        source: String::new(),
        notes: Vec::new(),
    })
}

/// Like [`plain`], with the keys that Llama and its descendants share: `intermediate_size`, `num_key_value_heads`
/// (the class's default, or none if that is the number of heads), `head_dim` (the class's default, or none if that is
/// width / heads), rotary positions, and the `tie_word_embeddings` default of the class.
pub(super) fn llama_like(
    keys: &Keys<'_>,
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    tied: bool,
) -> Result<ModelConfig, ModelError> {
    let head_dim = keys.size_if(&["head_dim"], HEAD_DIM)?.or(head_dim);
    let model = sized(keys, &COMMON, keys.size(&["intermediate_size"], FFN)?, head_dim)?;
    Ok(ModelConfig {
        kv_heads: keys.size_or("num_key_value_heads", HEADS, kv_heads.unwrap_or(model.heads), model.heads)?,
        position: rope(keys, model.head_dim, "partial_rotary_factor", 1.0)?,
        tied_head: keys.flag("tie_word_embeddings", tied)?,
        ..model
    })
}

/// Width / heads, which must be whole.
fn split_width(keys: &Keys<'_>, width: u64, heads: u64) -> Result<u64, ModelError> {
    if width.is_multiple_of(heads) {
        return Ok(width / heads);
    }
    Err(ModelError::Misfit {
        file: keys.file(),
        left: format!("the width {width}"),
        right: format!("{heads} heads"),
        rule: "the first must be a multiple of the second",
        remedy: "correct one of them, or say \"head_dim\" if the architecture has it",
    })
}

/// Rotary positions on the share `key` of each head, written at the top or in `rope_parameters`.
pub(super) fn rope(keys: &Keys<'_>, head_dim: u64, key: &str, class_default: f64) -> Result<Position, ModelError> {
    let nested = match keys.section("rope_parameters")? {
        Some(section) => section.number("partial_rotary_factor")?,
        None => None,
    };
    let share = keys.number(key)?.or(nested).unwrap_or(class_default);
    let dims = (head_dim as f64 * share) as u64;
    if !(share <= 1.0 && dims >= 1) {
        let expected = format!("a share of each head's {head_dim} dimensions, above 0 and at most 1");
        return Err(keys.wrong(key, &Value::from(share), expected));
    }
    Ok(Position::Rope { dims })
}

/// The activation named by `key`.
pub(super) fn activation(keys: &Keys<'_>, key: &str, class_default: Activation) -> Result<Activation, ModelError> {
    let Some(name) = keys.word(key)? else { return Ok(class_default) };
    Activation::find(name).ok_or_else(|| {
        let known: Vec<_> = Activation::names().collect();
        keys.wrong(key, &Value::from(name), format!("one of {}", known.join(", ")))
    })
}
