//! What a model's `forward` makes once for all its blocks: rotary tables and masks (`masking_utils.py`).

use super::super::style::{AttentionCode, Style};
use super::super::{ModelConfig, Position};
use super::class_of;
use crate::program::DType;

/// What is made between the embedding and the first block \[B\].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Cosines and sines, which every block's rotation saves: they live until the first block's backward is over.
    pub tables: Vec<u64>,
    /// Masks, which blocks turn into biases of their own: they live until the body returns, or while checkpoints need them.
    pub masks: Vec<u64>,
}

/// What the body of a model makes for sequences of so many tokens.
pub fn body(m: &ModelConfig, (batch, seq): (u64, u64), compute: DType, style: Style) -> Option<Body> {
    let class = class_of(m, style)?;
    let windows: Vec<Option<u64>> = {
        let mut kinds: Vec<Option<u64>> = (0..m.layers).map(|layer| m.window(layer)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    };
    let element = compute.bytes();
    let table = match m.position {
        Position::Rope { dims } => seq * dims * element,
        _ => 0,
    };
    // Gemma 3 has tables for blocks with windows and for those without.
    let pairs = if class.model_type == "gemma3_text" { windows.len() } else { 1 };
    let tables = if table > 0 { vec![table; 2 * pairs] } else { vec![] };
    let hidden = |window: &Option<u64>| class.masks || window.is_some_and(|window| seq >= window);
    let masks = match style.attention {
        AttentionCode::Eager if class.model_type == "mpt" => vec![batch * seq * seq],
        AttentionCode::Eager => windows.iter().map(|_| element * batch * seq * seq).collect(),
        AttentionCode::Sdpa => windows.iter().filter(|window| hidden(window)).map(|_| seq * seq).collect(),
        AttentionCode::Flash => vec![],
    };
    let biases = (m.position == Position::Alibi).then_some(m.heads * seq * batch * element);
    Some(Body { tables, masks: masks.into_iter().chain(biases).collect() })
}
