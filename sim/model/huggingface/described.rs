//! A model that no architecture describes: kinds of layers by letters, and a pattern of the letters (`model_type = "layers"`).
//!
//! It is ours alone. In a scenario it stands under `[model.config]`:
//!
//! ```toml
//! [model.config]
//! model_type = "layers"
//! hidden_size = 2048
//! vocab_size = 32000
//! pattern = "MFAF"          # repeated up to num_hidden_layers, where that is written
//! layers.M.mixer = { kind = "mamba2", heads = 64, head_dim = 64, groups = 8, state = 128 }
//! layers.A.mixer = { kind = "attention", heads = 16, kv_heads = 4, head_dim = 128 }
//! layers.F.feed_forward = { kind = "dense", width = 8192, activation = "silu", gated = true }
//! ```

use serde_json::Value;

use super::ModelError;
use super::decoder::{Decoder, bare};
use super::experts::chosen;
use super::keys::Keys;
use super::limits::{EXPERTS, FFN, HEAD_DIM, HEADS, LAYERS, LENGTH, PATTERN, VOCAB, WIDTH};
use super::mixers::{believed, gated_delta, mamba};
use crate::model::experts::{Experts, Router, Score};
use crate::model::layer::stand_together;
use crate::model::{
    Activation, Attention, Dense, FeedForward, GatedDelta, Gating, Layer, Mamba2, Mixer, Norm, NormPlacement, Norms,
    Position, QkNorm,
};

/// Reads `model_type` `layers`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let Some(pattern) = keys.word("pattern")?.filter(|pattern| !pattern.is_empty()) else {
        let expected = "a letter for each layer, such as \"MFAF\"";
        return Err(keys.missing("pattern", expected, "write one, and what each letter is under \"layers\""));
    };
    let norms = Norms { kind: norm(keys)?, placement: NormPlacement::Pre };
    let Some(kinds) = keys.section("layers")? else {
        let expected = "what each letter of \"pattern\" is: a mixer, a feed_forward, or both";
        return Err(keys.missing(
            "layers",
            expected,
            "write such as layers.F.feed_forward = { kind = \"dense\", width = 8192 }",
        ));
    };
    let width = keys.size(&["hidden_size"], WIDTH)?;
    let mut list: Vec<Layer> = vec![];
    let mut known: Vec<(char, Layer)> = vec![];
    for letter in pattern.chars() {
        if let Some((_, layer)) = known.iter().find(|(one, _)| *one == letter) {
            list.push(layer.clone());
            continue;
        }
        let name = letter.to_string();
        let Some(of) = kinds.section(&name)? else {
            let expected = format!("letters that \"layers\" describes, not {letter:?}");
            return Err(keys.wrong("pattern", &Value::from(pattern), expected));
        };
        let layer = layer(&of, width, norms)?;
        if let Some((other, _)) = known.iter().find(|(_, other)| !stand_together(&layer, other)) {
            return Err(ModelError::Misfit {
                file: keys.file(),
                left: format!("layer {other:?}"),
                right: format!("layer {letter:?}"),
                rule: "all attention of a model has the same heads, all feed-forwards and all experts the same sizes",
                remedy: "give both the same sizes; windows may differ",
            });
        }
        known.push((letter, layer.clone()));
        list.push(layer);
    }
    unread(&kinds)?;
    let Some(mixer) = list.iter().map(|layer| layer.mixer).find(|mixer| *mixer != Mixer::None) else {
        return Err(keys.wrong("pattern", &Value::from(pattern), "a layer that mixes tokens"));
    };
    let mixer = list.iter().map(|layer| layer.mixer).find(Mixer::attends).unwrap_or(mixer);
    let position = match keys.size_if(&["rotary_dims"], HEAD_DIM)? {
        Some(dims) => Position::Rope { dims: dims.min(mixer.head_dim()) },
        None => Position::None,
    };
    let count = keys.size_if(&["num_hidden_layers"], LAYERS)?.unwrap_or(list.len() as u64);
    let sizes = (count.min(LAYERS.most), width, keys.size(&["vocab_size"], VOCAB)?);
    Ok(Decoder {
        kv_heads: mixer.kv_heads(),
        norm: norms.kind,
        position,
        tied_head: keys.flag("tie_word_embeddings", false)?,
        list: Some(list),
        ..bare(sizes, (mixer.heads(), mixer.head_dim()))
    })
}

fn norm(keys: &Keys<'_>) -> Result<Norm, ModelError> {
    match keys.word("norm")?.unwrap_or("rms") {
        "rms" => Ok(Norm::Rms),
        "layer" => Ok(Norm::Layer { bias: true }),
        other => Err(keys.wrong("norm", &Value::from(other), "\"rms\" or \"layer\"")),
    }
}

/// Refuses what nobody has asked for.
fn unread(keys: &Keys<'_>) -> Result<(), ModelError> {
    match keys.left().next() {
        None => Ok(()),
        Some((key, value)) => {
            let why = "nothing reads this key";
            Err(keys.unsupported(key, value, why, "remove it, or check how it is spelt"))
        }
    }
}

fn layer(keys: &Keys<'_>, width: u64, norms: Norms) -> Result<Layer, ModelError> {
    let mixer = keys.section("mixer")?.map(|of| mixer(&of, width)).transpose()?.unwrap_or(Mixer::None);
    let feed_forward = keys.section("feed_forward")?.map(|of| feed_forward(&of)).transpose()?;
    unread(keys)?;
    let feed_forward = feed_forward.unwrap_or(FeedForward::None);
    if mixer == Mixer::None && feed_forward == FeedForward::None {
        return Err(keys.missing("mixer", "a mixer, a feed_forward, or both", "write what the layer is"));
    }
    Ok(Layer { mixer, feed_forward, norms })
}

fn mixer(keys: &Keys<'_>, width: u64) -> Result<Mixer, ModelError> {
    let heads = |name: &'static str| keys.size(&[name], HEADS);
    let made = match keys.word("kind")? {
        Some("attention") => {
            let count = heads("heads")?;
            believed(keys, &[("heads", count, keys.size(&["head_dim"], HEAD_DIM)?)])?;
            let kv_heads = keys.size_or("kv_heads", HEADS, count, count)?;
            if !count.is_multiple_of(kv_heads) {
                return Err(ModelError::Misfit {
                    file: keys.file(),
                    left: format!("{count} query heads"),
                    right: format!("{kv_heads} key-value heads"),
                    rule: "the first must be a multiple of the second",
                    remedy: "check \"heads\" and \"kv_heads\"",
                });
            }
            Mixer::Attention(Attention {
                kv_heads,
                window: keys.size_if(&["window"], LENGTH)?,
                qkv_bias: keys.flag("qkv_bias", false)?,
                output_bias: keys.flag("output_bias", false)?,
                qk_norm: keys.flag("qk_norm", false)?.then_some(QkNorm::PerHead),
                output_gate: keys.flag("output_gate", false)?,
                ..Attention::plain(count, keys.size(&["head_dim"], HEAD_DIM)?)
            })
        }
        Some("mamba2") => Mixer::Mamba2(mamba(
            keys,
            width,
            Mamba2 {
                heads: heads("heads")?,
                head_dim: keys.size(&["head_dim"], HEAD_DIM)?,
                groups: keys.size_or("groups", HEADS, 1, 1)?,
                state: keys.size(&["state"], HEAD_DIM)?,
                conv: keys.size_or("conv", PATTERN, 4, 4)?,
                chunk: keys.size_or("chunk", LENGTH, 256, 256)?,
                conv_bias: keys.flag("conv_bias", true)?,
                bias: keys.flag("bias", false)?,
            },
        )?),
        Some("gated_delta") => {
            let delta = GatedDelta {
                key_heads: heads("key_heads")?,
                key_dim: keys.size(&["key_dim"], HEAD_DIM)?,
                value_heads: heads("value_heads")?,
                value_dim: keys.size(&["value_dim"], HEAD_DIM)?,
                conv: keys.size_or("conv", PATTERN, 4, 4)?,
            };
            Mixer::GatedDelta(gated_delta(keys, delta, "check \"value_heads\" and \"key_heads\"")?)
        }
        other => {
            let value = other.map_or(Value::Null, Value::from);
            return Err(keys.wrong("kind", &value, "\"attention\", \"mamba2\" or \"gated_delta\""));
        }
    };
    unread(keys)?;
    Ok(made)
}

fn feed_forward(keys: &Keys<'_>) -> Result<FeedForward, ModelError> {
    let act = super::decoder::activation(keys, "activation", Activation::Silu)?;
    let gating = if keys.flag("gated", true)? { Gating::Gated(act) } else { Gating::Plain(act) };
    let width = keys.size(&["width"], FFN)?;
    let made = match keys.word("kind")? {
        Some("dense") => FeedForward::Dense(Dense { width, gating, bias: keys.flag("bias", false)? }),
        Some("experts") => {
            let (count, top_k) = (keys.size(&["count"], EXPERTS)?, keys.size(&["top_k"], EXPERTS)?);
            believed(keys, &[("an eighth of all experts", count.div_ceil(8), width)])?;
            let experts = chosen(keys, (count, top_k), width)?;
            let score = match keys.word("score")?.unwrap_or("softmax") {
                "softmax" => Score::Softmax,
                "softmax_of_chosen" => Score::SoftmaxOfChosen,
                "sigmoid" => Score::Sigmoid,
                other => {
                    let expected = "\"softmax\", \"softmax_of_chosen\" or \"sigmoid\"";
                    return Err(keys.wrong("score", &Value::from(other), expected));
                }
            };
            let router = Router { score, normalises: keys.flag("normalises", true)?, ..experts.router };
            let shared = keys.size_if(&["shared"], FFN)?.unwrap_or(0);
            let shared_gate = keys.flag("shared_gate", false)? && shared > 0;
            FeedForward::Experts(Experts { shared, shared_gate, gating, router, ..experts })
        }
        other => {
            let value = other.map_or(Value::Null, Value::from);
            return Err(keys.wrong("kind", &value, "\"dense\" or \"experts\""));
        }
    };
    unread(keys)?;
    Ok(made)
}
