//! What a checkpointed block keeps of its forward.

use crate::model::graph::Graph;
pub use crate::model::operators::Saved;

/// Which forward operators' results a checkpointed block keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Only the block's input (full recompute).
    Nothing,
    /// torchtitan's operator-level policy (`torchtitan/distributed/activation_checkpoint.py`): attention and every
    /// second matmul.
    ComputeIntensive,
    /// A policy of one's own: what these operators return.
    Saved(SavedOps),
}

/// A set of [`Saved`] operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct SavedOps(u8);

impl SavedOps {
    /// The set with one more.
    #[must_use]
    pub fn with(self, op: Saved) -> SavedOps {
        SavedOps(self.0 | 1 << op as u8)
    }

    /// Whether an operator is in it.
    pub fn has(self, op: Saved) -> bool {
        self.0 & 1 << op as u8 != 0
    }

    /// Whether it keeps an operator's result: all of it, needed or not.
    pub(super) fn keeps(self, graph: &Graph, index: usize) -> bool {
        match graph.ops[index].row().policy {
            None => false,
            Some(Saved::Mm) => self.has(Saved::Mm) || (self.has(Saved::EverySecondMm) && graph.counts_odd(index)),
            Some(saved) => self.has(saved),
        }
    }
}
