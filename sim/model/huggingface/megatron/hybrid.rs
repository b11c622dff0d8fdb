//! A hybrid stack as Megatron-LM's arguments describe it: `--hybrid-layer-pattern`, or `--hybrid-override-pattern` up to 0.16, a letter for each
//! layer (core_v0.17.0: `core/ssm/mamba_hybrid_layer_allocation.py`; core_v0.16.1: `core/ssm/mamba_mixer.py`).
//!
//! `|` stands between stages of a pipeline, which a scenario names under `pipeline.layers`.

use serde_json::Value;

use crate::model::huggingface::ModelError;
use crate::model::huggingface::decoder::{Decoder, Names, bare, split_width};
use crate::model::huggingface::keys::Keys;
use crate::model::huggingface::limits::{HEAD_DIM, HEADS, LAYERS, VOCAB, WIDTH};
use crate::model::huggingface::mixers::{mamba, of_letters};
use crate::model::{Mamba2, Mixer};

const KEYS: [&str; 2] = ["hybrid_layer_pattern", "hybrid_override_pattern"];

/// The pattern, without the marks between stages, and its key.
pub(super) struct Letters {
    key: &'static str,
    pattern: String,
}

/// Reads it, if there is one.
pub(super) fn letters(keys: &Keys<'_>) -> Result<Option<Letters>, ModelError> {
    for key in KEYS {
        let Some(text) = keys.word(key)? else { continue };
        if text.contains('/') {
            let why =
                "modules that predict tokens further ahead (behind \"/\") are not described beside a hybrid stack";
            return Err(keys.unsupported(key, &Value::from(text), why, "cut the pattern before the first \"/\""));
        }
        let pattern: String = text.chars().filter(|letter| *letter != '|').collect();
        if pattern.is_empty() || pattern.chars().count() as u64 > LAYERS.most {
            return Err(keys.wrong(key, &Value::from(text), "a letter for each layer, such as \"M-M*-\""));
        }
        return Ok(Some(Letters { key, pattern }));
    }
    Ok(None)
}

/// The decoder's sizes: the pattern says how many layers there are, and `num_layers` may say the same.
pub(super) fn sized(
    keys: &Keys<'_>,
    (letters, names): (&Letters, &Names),
    ffn: u64,
    head_dim: Option<u64>,
) -> Result<Decoder, ModelError> {
    let count = letters.pattern.chars().count() as u64;
    if let Some(layers) = keys.size_if(names.layers, LAYERS)?.filter(|layers| *layers != count) {
        let expected = format!("{layers} letters, one for each layer of \"num_layers\", not {count}");
        return Err(keys.wrong(letters.key, &Value::from(letters.pattern.as_str()), expected));
    }
    let width = keys.size(names.width, WIDTH)?;
    let heads = keys.size(names.heads, HEADS)?;
    let head_dim = head_dim.map_or_else(|| split_width(keys, width, heads), Ok)?;
    let vocab = keys.size(names.vocab, VOCAB)?;
    Ok(Decoder { ffn, ..bare((count, width, vocab), (heads, head_dim)) })
}

/// Layers of the pattern.
pub(super) fn layers(keys: &Keys<'_>, letters: &Letters, decoder: Decoder) -> Result<Decoder, ModelError> {
    let head_dim = keys.size_or("mamba_head_dim", HEAD_DIM, 64, 64)?;
    let heads = match keys.size_if(&["mamba_num_heads"], HEADS)? {
        Some(heads) => heads,
        None => 2 * decoder.width / head_dim.max(1),
    };
    let sizes = Mamba2 {
        heads: heads.max(1),
        head_dim,
        groups: keys.size_or("mamba_num_groups", HEADS, 8, 8)?,
        state: keys.size_or("mamba_state_dim", HEAD_DIM, 128, 128)?,
        conv: 4,
        chunk: 128,
        conv_bias: true,
        bias: false,
    };
    let mixer = match letters.pattern.contains('M') {
        true => Mixer::Mamba2(mamba(keys, decoder.width, sizes)?),
        false => Mixer::None,
    };
    of_letters(keys, (letters.key, &letters.pattern), decoder, mixer)
}
