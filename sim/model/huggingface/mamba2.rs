//! Mamba-2 (`Mamba2Config`): every layer is a norm and a state-space mixer, without attention and feed-forwards.

use super::ModelError;
use super::decoder::{COMMON, Decoder, Names, sized};
use super::keys::Keys;
use super::limits::{HEAD_DIM, HEADS, LENGTH, PATTERN};
use super::mixers::{harmless, mamba};
use crate::model::{FeedForward, Layer, Mamba2, Mixer, Norm, NormPlacement, Norms, Position};

/// Reads `model_type` `mamba2`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    const NAMES: Names = Names { heads: &["num_heads"], ..COMMON };
    let head_dim = keys.size_or("head_dim", HEAD_DIM, 64, 64)?; // Mamba2Config
    let model = sized(keys, &NAMES, 1, Some(head_dim))?;
    let sizes = Mamba2 {
        heads: model.heads,
        head_dim,
        groups: keys.size_or("n_groups", HEADS, 8, 8)?, // Mamba2Config
        state: keys.size_or("state_size", HEAD_DIM, 128, 128)?, // Mamba2Config
        conv: keys.size_or("conv_kernel", PATTERN, 4, 4)?, // Mamba2Config
        chunk: keys.size_or("chunk_size", LENGTH, 256, 256)?, // Mamba2Config
        conv_bias: keys.flag("use_conv_bias", true)?,   // Mamba2Config
        bias: keys.flag("use_bias", false)?,            // Mamba2Config
    };
    let mixer = Mixer::Mamba2(mamba(keys, model.width, sizes)?);
    harmless(keys);
    let norms = Norms { kind: Norm::Rms, placement: NormPlacement::Pre };
    Ok(Decoder {
        list: Some(vec![Layer { mixer, feed_forward: FeedForward::None, norms }]),
        position: Position::None,
        tied_head: keys.flag("tie_word_embeddings", false)?, // Mamba2Config
        ..model
    })
}
