//! What a model's `forward` makes once for all its blocks: rotary tables, masks (`masking_utils.py`), position ids.

use super::super::style::{AttentionCode, Style};
use super::super::{Layer, ModelConfig, Position};
use super::class_of;
use crate::program::DType;

/// What is made between the embedding and the first block \[B\].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// What `forward` names until it returns.
    pub named: Vec<u64>,
    /// What blocks keep until the first one's backward is over: cosines and sines, which every rotation saves; masks, and what
    /// else checkpoints hold.
    pub shared: Vec<u64>,
    /// What FSDP makes for each block, of arguments in another type than the block's; it lives until the block's backward is
    /// over.
    pub cast: Vec<u64>,
}

/// What blocks do with what they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Whether they are checkpointed.
    pub checkpointed: bool,
    /// Whether they are compiled.
    pub compiled: bool,
    /// Whether FSDP casts their arguments.
    pub casts: bool,
}

/// What the body of a model makes for `batch` sequences of `seq` tokens.
pub fn body(m: &ModelConfig, (batch, seq): (u64, u64), compute: DType, style: Style, blocks: Blocks) -> Option<Body> {
    let class = class_of(m, style)?;
    let mut body = Body::default();
    let mut windows: Vec<Option<u64>> = m.layers.iter().map(Layer::window).collect();
    windows.sort_unstable();
    windows.dedup();
    let element = compute.bytes();
    if let Position::Rope { dims } = m.position {
        // Gemma 3 has tables for blocks with windows and for those without.
        let pairs = if class.model_type == "gemma3_text" { windows.len() } else { 1 };
        let tables = |bytes: u64| vec![seq * dims * bytes; 2 * pairs];
        if class.model_type == "olmo2" {
            // Its tables stay in fp32.
            body.named.extend(tables(4));
            body.shared.extend(tables(4).into_iter().filter(|_| !blocks.casts));
            body.cast.extend(tables(element).into_iter().filter(|_| blocks.casts));
        } else {
            body.shared.extend(tables(element));
        }
    }
    if !matches!(m.position, Position::Alibi) && class.model_type != "gpt2" {
        // Position ids, which the table of learned positions saves anyway.
        let list = if blocks.checkpointed { &mut body.shared } else { &mut body.named };
        list.push(8 * seq);
    }
    let masked = |window: &Option<u64>| class.masks || window.is_some_and(|window| seq >= window);
    // MPT fills in where a mask of booleans hides, which keeps it.
    let fills = class.model_type == "mpt";
    let masks: Vec<u64> = match style.attention {
        AttentionCode::Eager if fills => vec![batch * seq * seq],
        AttentionCode::Eager => windows.iter().map(|_| element * batch * seq * seq).collect(),
        AttentionCode::Sdpa => windows.iter().filter(|window| masked(window)).map(|_| seq * seq).collect(),
        AttentionCode::Flash => vec![],
    };
    let keeps = blocks.checkpointed || fills || (blocks.compiled && style.attention == AttentionCode::Eager);
    body.shared.extend(masks.iter().filter(|_| keeps));
    body.named.extend(masks.iter().filter(|_| !keeps));
    if m.position == Position::Alibi {
        // MPT's are fp32 and of no sequence in particular; FSDP casts them, which a checkpoint keeps.
        body.named.push(m.heads() * seq * if fills { 4 } else { batch * element });
        body.cast.extend((fills && blocks.casts && blocks.checkpointed).then_some(m.heads() * seq * element));
    }
    Some(body)
}
