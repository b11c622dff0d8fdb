//! MaxText's own decoder of 2023, which its oldest receipts trained: attention and feed-forward side by side behind one norm,
//! norms on queries and keys, no gate (google/maxtext@5ebcd67fe: `MaxText/layers.py`, keys as in `configs/base.yml`).

use super::ModelError;
use super::decoder::{Decoder, Names, activation, sized};
use super::keys::Keys;
use super::limits::{FFN, HEAD_DIM};
use crate::model::{Activation, Gating, NormPlacement, Position, QkNorm};

const NAMES: Names = Names {
    width: &["base_emb_dim"],
    layers: &["base_num_decoder_layers"],
    heads: &["base_num_heads"],
    vocab: &["vocab_size"],
};

/// Reads `model_type` `maxtext`.
pub(super) fn read(keys: &Keys<'_>) -> Result<Decoder, ModelError> {
    let head_dim = keys.size(&["head_dim"], HEAD_DIM)?;
    let model = sized(keys, &NAMES, keys.size(&["base_mlp_dim"], FFN)?, Some(head_dim))?;
    Ok(Decoder {
        norm_placement: NormPlacement::ParallelShared,
        position: Position::Rope { dims: head_dim },
        gating: Gating::Plain(activation(keys, "mlp_activation", Activation::Relu)?), // base.yml
        qk_norm: Some(QkNorm::PerHead),
        tied_head: keys.flag("logits_via_embedding", true)?, // base.yml
        notes: vec!["a norm on values is left out".to_owned()],
        ..model
    })
}
