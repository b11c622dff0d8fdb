//! Which operators reduce maxima of fp8 numbers in the second run of Transformer Engine's checkpoint.
//!
//! In fp8 a checkpoint is Transformer Engine's (`pytorch/distributed.py`, `_CheckpointFunction`, 2.9), whose second run enters
//! and leaves fp8 anew: under scales of earlier steps it reduces maxima at its end, and once more after the backward of each
//! linear in it up to the first norm or grouped linear, and of that (`module/linear.py`, `module/grouped_linear.py`,
//! `ops/fuser.py`: a linear of a second run leaves it open which module is the first).

use super::super::Eager;
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::Reduces;

/// Whether an operator takes the turn of those behind it in a second run.
fn takes_turn(op: &Op) -> bool {
    matches!(op.kind, OpKind::Megatron(kind) if kind.reduces() == Reduces::AndEnds)
}

/// Whether an operator of a second run that begins at `first`, if it is in fp8, reduces maxima after its backward.
pub(in crate::runtime::eager) fn reduces(graph: &Graph, first: usize, index: usize) -> bool {
    let reduces = matches!(graph.ops[index].kind, OpKind::Megatron(kind) if kind.reduces() != Reduces::Never);
    reduces && !graph.ops[first..index].iter().any(takes_turn)
}

impl Eager {
    /// Whether a block that is recomputed leaves no reduction of maxima to blocks behind it in the same second run.
    pub fn ends_turns(graph: &Graph) -> bool {
        graph.ops.iter().any(takes_turn)
    }
}
