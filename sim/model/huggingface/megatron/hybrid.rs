//! A hybrid stack as Megatron-LM's arguments describe it: `--hybrid-layer-pattern`, or `--hybrid-override-pattern` up to 0.16, a letter for each
//! layer (core_v0.17.0: `core/ssm/mamba_hybrid_layer_allocation.py`; core_v0.16.1: `core/ssm/mamba_mixer.py`).
//!
//! `|` stands between stages of a pipeline, which a scenario names under `pipeline.layers`; behind each `/` stand the layers of a module that
//! predicts a token further ahead (core_v0.17.0, `parse_hybrid_pattern`).

use serde_json::Value;

use crate::model::huggingface::ModelError;
use crate::model::huggingface::decoder::{Decoder, Names, bare, split_width};
use crate::model::huggingface::keys::Keys;
use crate::model::huggingface::limits::{HEAD_DIM, HEADS, LAYERS, VOCAB, WIDTH};
use crate::model::huggingface::mixers::{mamba, of_letters};
use crate::model::{Mamba2, Mixer};

const KEYS: [&str; 2] = ["hybrid_layer_pattern", "hybrid_override_pattern"];

/// Letters of a module that predicts ahead, where they do not stand behind "/".
const AHEAD_KEY: &str = "mtp_hybrid_override_pattern";

/// The pattern, without the marks between stages, and its key.
pub(super) struct Letters {
    key: &'static str,
    pattern: String,
    /// Letters of a module that predicts ahead, and their key.
    ahead: Option<(&'static str, String)>,
    /// How many of these stand there.
    modules: u64,
}

/// Reads it, if there is one.
pub(super) fn letters(keys: &Keys<'_>) -> Result<Option<Letters>, ModelError> {
    for key in KEYS {
        let Some(text) = keys.word(key)? else { continue };
        let mut parts = text.split('/');
        let pattern: String = parts.next().unwrap_or("").chars().filter(|letter| *letter != '|').collect();
        let behind: Vec<&str> = parts.collect();
        if behind.iter().any(|part| part.is_empty() || *part != behind[0]) {
            let expected =
                "the same letters behind each \"/\", one part for each token that is predicted further ahead";
            return Err(keys.wrong(key, &Value::from(text), expected));
        }
        let apart = keys.word(AHEAD_KEY)?.filter(|letters| !letters.is_empty());
        let ahead = behind.first().map(|letters| (key, (*letters).to_owned()));
        let ahead = ahead.or(apart.map(|letters| (AHEAD_KEY, letters.to_owned())));
        if pattern.is_empty() || pattern.chars().count() as u64 > LAYERS.most {
            return Err(keys.wrong(key, &Value::from(text), "a letter for each layer, such as \"M-M*-\""));
        }
        return Ok(Some(Letters { key, pattern, ahead, modules: behind.len() as u64 }));
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
    let mtp_repeated = keys.flag("mtp_use_repeated_layer", false)?; // TransformerConfig
    let decoder = Decoder { mtp_layers: letters.modules, mtp_repeated, ..decoder };
    let ahead = letters.ahead.as_ref().map(|(key, letters)| (*key, letters.as_str()));
    of_letters(keys, (letters.key, &letters.pattern), ahead, (decoder, mixer))
}
