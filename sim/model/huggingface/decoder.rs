//! What the architectures have in common: the names of their sizes, head dimension, rotary dimensions, activations.

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;
use super::limits::{FFN, HEAD_DIM, HEADS, LAYERS, VOCAB, WIDTH};
use crate::model::experts::Experts;
use crate::model::latent::LatentAttention;
use crate::model::{
    Activation, Attention, Dense, Dropout, FeedForward, Gating, Layer, Layers, Mixer, ModelConfig, Norm, NormPlacement,
    Norms, Position, QkNorm,
};

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

/// A decoder as configs describe it: one layer, and two patterns, of windows and of experts, in which layers differ.
pub(super) struct Decoder {
    pub layers: u64,
    pub width: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    /// Width of the dense feed-forward.
    pub ffn: u64,
    /// Experts, whose hidden values are made as `gating` says.
    pub experts: Option<Experts>,
    /// Layers at the beginning that have a dense feed-forward instead of experts (`first_k_dense_replace`).
    pub dense_first: u64,
    /// Every how many layers one has experts (`moe_layer_freq`, `decoder_sparse_step`); 1: all.
    pub every: u64,
    /// Whether the one in `every` is the first of them (DeepSeek: layer `i` with `i % every = 0`) or the last (Qwen).
    pub every_first: bool,
    /// Latent attention, of as many `heads`.
    pub latent: Option<LatentAttention>,
    pub sinks: bool,
    pub vocab: u64,
    pub norm: Norm,
    pub norm_placement: NormPlacement,
    pub final_norm: bool,
    pub embedding_norm: bool,
    pub position: Position,
    pub gating: Gating,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub ffn_bias: bool,
    pub fused_qkv: bool,
    pub qk_norm: Option<QkNorm>,
    pub tied_head: bool,
    /// Keys each query may see; none: all.
    pub sliding_window: Option<u64>,
    /// Every how many layers one sees everything (Gemma 2: 2, Gemma 3: 6); 0: none.
    pub global_every: u64,
    pub attention_softcap: bool,
    /// Attention's output is gated (Qwen3-Next).
    pub output_gate: bool,
    /// All layers, one by one, where they are more than two patterns say.
    pub list: Option<Vec<Layer>>,
    pub logit_softcap: bool,
    pub mtp_layers: u64,
    /// Layers of a module that predicts ahead; none: one like the last.
    pub mtp_block: Vec<Layer>,
    /// All such modules are one.
    pub mtp_repeated: bool,
    pub scaled_embedding: bool,
    /// Cosines and sines are multiplied by a factor ([`rope_scaled`]).
    pub rope_scaled: bool,
    pub notes: Vec<String>,
}

impl Decoder {
    /// The model; its name, source, dropout and longest sequence are the caller's to fill in.
    pub fn model(self) -> ModelConfig {
        let layers = match &self.list {
            Some(list) => {
                Layers::new(self.layers, 0, list.len() as u64, |place| list[place as usize % list.len()].clone())
            }
            None => Layers::new(self.layers, self.dense_first, self.period(), |place| self.layer(place)),
        };
        ModelConfig {
            name: String::new(),
            layers,
            width: self.width,
            vocab: self.vocab,
            final_norm: self.final_norm.then_some(self.norm),
            embedding_norm: self.embedding_norm.then_some(self.norm),
            position: self.position,
            tied_head: self.tied_head,
            context: None,
            logit_softcap: self.logit_softcap,
            mtp_layers: self.mtp_layers,
            mtp_block: self.mtp_block,
            mtp_repeated: self.mtp_repeated,
            scaled_embedding: self.scaled_embedding,
            rope_scaled: self.rope_scaled,
            dropout: Dropout::default(),
            model_type: "",
            source: String::new(),
            notes: self.notes,
        }
    }

    /// After how many layers both patterns repeat.
    fn period(&self) -> u64 {
        let windows = if self.sliding_window.is_some() { self.global_every.max(1) } else { 1 };
        let experts = if self.experts.is_some() { self.every } else { 1 };
        (1..=windows).map(|times| times * experts).find(|period| period.is_multiple_of(windows)).unwrap_or(windows)
    }

    /// The layer at a place, as both patterns have it.
    pub fn layer(&self, place: u64) -> Layer {
        let sees_all = self.global_every > 0 && (place + 1).is_multiple_of(self.global_every);
        let mixer = match self.latent {
            Some(latent) => Mixer::Latent(LatentAttention { heads: self.heads, ..latent }),
            None => Mixer::Attention(Attention {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                window: self.sliding_window.filter(|_| !sees_all),
                qkv_bias: self.qkv_bias,
                output_bias: self.output_bias,
                fused_qkv: self.fused_qkv,
                qk_norm: self.qk_norm,
                sinks: self.sinks,
                softcap: self.attention_softcap,
                output_gate: self.output_gate,
            }),
        };
        let nth = if self.every_first { place } else { place + 1 };
        let sparse = place >= self.dense_first && nth.is_multiple_of(self.every);
        let feed_forward = match self.experts.as_ref().filter(|_| sparse) {
            Some(experts) => FeedForward::Experts(Experts { gating: self.gating, ..experts.clone() }),
            None => FeedForward::Dense(Dense { width: self.ffn, gating: self.gating, bias: self.ffn_bias }),
        };
        Layer { mixer, feed_forward, norms: Norms { kind: self.norm, placement: self.norm_placement } }
    }
}

/// A model with the sizes of `names`, feed-forward width `ffn` and head dimension width / heads, and otherwise plain:
/// as many key-value heads as query heads, RMS norms before each part, SiLU-gated feed-forward, no biases, own head.
/// A reader overrides what differs.
pub(super) fn plain(keys: &Keys<'_>, names: &Names, ffn: u64) -> Result<Decoder, ModelError> {
    sized(keys, names, ffn, None)
}

/// [`plain`] with a head dimension of its own, if there is one.
pub(super) fn sized(keys: &Keys<'_>, names: &Names, ffn: u64, head_dim: Option<u64>) -> Result<Decoder, ModelError> {
    let width = keys.size(names.width, WIDTH)?;
    let heads = keys.size(names.heads, HEADS)?;
    let layers = keys.size(names.layers, LAYERS)?;
    let head_dim = head_dim.map_or_else(|| split_width(keys, width, heads), Ok)?;
    let vocab = keys.size(names.vocab, VOCAB)?;
    Ok(Decoder { ffn, ..bare((layers, width, vocab), (heads, head_dim)) })
}

/// A decoder of so many layers, so wide, of so many words, with so many heads of so many dimensions, and otherwise plain.
pub(super) fn bare((layers, width, vocab): (u64, u64, u64), (heads, head_dim): (u64, u64)) -> Decoder {
    Decoder {
        layers,
        width,
        heads,
        kv_heads: heads,
        head_dim,
        ffn: 1,
        experts: None,
        dense_first: 0,
        every: 1,
        every_first: true,
        latent: None,
        sinks: false,
        vocab,
        norm: Norm::Rms,
        norm_placement: NormPlacement::Pre,
        final_norm: true,
        embedding_norm: false,
        position: Position::None,
        gating: Gating::Gated(Activation::Silu),
        qkv_bias: false,
        output_bias: false,
        ffn_bias: false,
        fused_qkv: false,
        qk_norm: None,
        tied_head: false,
        sliding_window: None,
        global_every: 0,
        attention_softcap: false,
        output_gate: false,
        list: None,
        logit_softcap: false,
        mtp_layers: 0,
        mtp_block: vec![],
        mtp_repeated: false,
        scaled_embedding: false,
        rope_scaled: false,
        notes: Vec::new(),
    }
}

/// Like [`plain`], with the keys that Llama and its descendants share: `intermediate_size`, `num_key_value_heads`
/// (the class's default, or none if that is the number of heads), `head_dim` (the class's default, or none if that is
/// width / heads), rotary positions, and the `tie_word_embeddings` default of the class.
pub(super) fn llama_like(
    keys: &Keys<'_>,
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    tied: bool,
) -> Result<Decoder, ModelError> {
    let head_dim = keys.size_if(&["head_dim"], HEAD_DIM)?.or(head_dim);
    let model = sized(keys, &COMMON, keys.size(&["intermediate_size"], FFN)?, head_dim)?;
    Ok(Decoder {
        kv_heads: keys.size_or("num_key_value_heads", HEADS, kv_heads.unwrap_or(model.heads), model.heads)?,
        position: rope(keys, model.head_dim, "partial_rotary_factor", 1.0)?,
        rope_scaled: rope_scaled(keys)?.unwrap_or(false),
        tied_head: keys.flag("tie_word_embeddings", tied)?,
        ..model
    })
}

/// Width / heads, which must be whole.
pub(super) fn split_width(keys: &Keys<'_>, width: u64, heads: u64) -> Result<u64, ModelError> {
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

/// Whether cosines and sines are multiplied by a factor: YaRN's attention factor, where it is not 1 (arXiv 2309.00071;
/// transformers, `modeling_rope_utils.py`, `_compute_yarn_parameters`). None where the file says nothing of scaling.
pub(super) fn rope_scaled(keys: &Keys<'_>) -> Result<Option<bool>, ModelError> {
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(section) = keys.section(name)? else { continue };
        let Some(kind) = section.word("rope_type")?.map_or_else(|| section.word("type"), |kind| Ok(Some(kind)))? else {
            continue;
        };
        if kind != "yarn" {
            return Ok(Some(false));
        }
        if let Some(factor) = section.number("attention_factor")? {
            return Ok(Some(factor != 1.0));
        }
        let stretched = section.number("factor")?.is_some_and(|factor| factor > 1.0);
        let (one, all) = (section.number("mscale")?, section.number("mscale_all_dim")?);
        return Ok(Some(stretched && (one.is_none() || all.is_none() || one != all)));
    }
    Ok(None)
}

/// The activation named by `key`.
pub(super) fn activation(keys: &Keys<'_>, key: &str, class_default: Activation) -> Result<Activation, ModelError> {
    let Some(name) = keys.word(key)? else { return Ok(class_default) };
    Activation::find(name).ok_or_else(|| {
        let known: Vec<_> = Activation::names().collect();
        keys.wrong(key, &Value::from(name), format!("one of {}", known.join(", ")))
    })
}
