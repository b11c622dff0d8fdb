//! What a checkpointed block keeps of its forward.

use crate::model::Activation;
use crate::model::experts::ExpertOp;
use crate::model::experts::titan::TitanOp;
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::tensor::Redistribution;

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

/// Whether a matmul without a bias is the first, third, … of its block.
fn counts_odd(graph: &Graph, index: usize) -> bool {
    let plain = |op: &&Op| matches!(op.kind, OpKind::Linear { .. }) && op.params.len() == 1;
    graph.ops[..=index].iter().filter(plain).count() % 2 == 1
}

/// For each operator, whether torchtitan's operator-level policy keeps its result: attention and matmuls with a bias
/// (`addmm`), reduce-scatters, `topk` and all-to-alls always, other matmuls all but every second. A router's gate is made again
/// (`per_op_sac_force_recompute_mm_shapes_by_fqns`).
pub(super) fn kept_ops(graph: &Graph) -> impl Fn(usize) -> bool + '_ {
    move |index| match graph.ops[index].kind {
        OpKind::Attention { .. } | OpKind::Redistribute(Redistribution::ReduceScatter) => true,
        OpKind::Linear { .. } if graph.ops[index].params.len() > 1 => true,
        OpKind::Experts(ExpertOp::Titan(TitanOp::Choose | TitanOp::Count { .. } | TitanOp::Exchange)) => true,
        OpKind::Linear { .. } => counts_odd(graph, index),
        _ => false,
    }
}

/// Operators whose results a policy of one's own keeps (`create_selective_checkpoint_contexts`), by their names in ATen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// `_scaled_dot_product_flash_attention` and its like.
    Attention,
    /// `mm`: linears without a bias.
    Mm,
    /// All but every second `mm`, as torchtitan counts.
    EverySecondMm,
    /// `_fused_rms_norm`.
    RmsNorm,
    /// `silu`.
    Silu,
    /// `mul`, the rotary embedding's too.
    Mul,
    /// `add`.
    Add,
    /// `_to_copy`.
    ToCopy,
}

impl Saved {
    /// All of them, by the name a file has for each.
    pub const NAMED: [(&'static str, Saved); 8] = [
        ("attention", Saved::Attention),
        ("mm", Saved::Mm),
        ("every_second_mm", Saved::EverySecondMm),
        ("rms_norm", Saved::RmsNorm),
        ("silu", Saved::Silu),
        ("mul", Saved::Mul),
        ("add", Saved::Add),
        ("to_copy", Saved::ToCopy),
    ];
}

/// A set of [`Saved`] operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        let op = &graph.ops[index];
        match op.kind {
            OpKind::Attention { .. } => self.has(Saved::Attention),
            OpKind::Linear { .. } if op.params.len() == 1 => {
                self.has(Saved::Mm) || (self.has(Saved::EverySecondMm) && counts_odd(graph, index))
            }
            OpKind::RmsNorm { .. } => self.has(Saved::RmsNorm),
            OpKind::Act(Activation::Silu) => self.has(Saved::Silu),
            OpKind::Mul | OpKind::RotateComplex { .. } | OpKind::Scale => self.has(Saved::Mul),
            OpKind::Add => self.has(Saved::Add),
            OpKind::Cast => self.has(Saved::ToCopy),
            _ => false,
        }
    }
}
