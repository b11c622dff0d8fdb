//! Activation checkpointing, block by block.

use crate::plan::eager::SavedOps;

/// What each block does about its activations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Checkpoint {
    /// Keep everything autograd saves.
    None,
    /// Keep the block's input, run its forward again in backward.
    Full,
    /// Do that for the blocks that say so.
    Blocks(Vec<bool>),
    /// torchtitan's operator-level selective policy.
    SelectiveOp,
    /// A selective policy of one's own.
    Saving(SavedOps),
}

impl Checkpoint {
    /// Whether it keeps what some operators return.
    pub fn is_selective(&self) -> bool {
        matches!(self, Checkpoint::SelectiveOp | Checkpoint::Saving(_))
    }
}
