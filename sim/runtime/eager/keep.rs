//! What a checkpointed block keeps of its forward.

use crate::model::graph::Graph;
pub use crate::model::operators::Saved;
pub use crate::plan::eager::SavedOps;

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

impl SavedOps {
    /// Whether it keeps an operator's result: all of it, needed or not.
    pub(super) fn keeps(self, graph: &Graph, index: usize) -> bool {
        match graph.ops[index].row().policy {
            None => false,
            Some(Saved::Mm) => self.has(Saved::Mm) || (self.has(Saved::EverySecondMm) && graph.counts_odd(index)),
            Some(saved) => self.has(saved),
        }
    }
}

/// How a forward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Autograd saves what backward needs.
    Train,
    /// Under activation checkpointing: nothing is saved but what the policy keeps.
    Checkpoint(Keep),
}
