//! What a checkpointed block keeps of its forward.

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
}

/// For each operator, whether torchtitan's operator-level policy keeps its result: attention and matmuls with a bias
/// (`addmm`), reduce-scatters, `topk` and all-to-alls always, other matmuls all but every second. A router's gate is made again
/// (`per_op_sac_force_recompute_mm_shapes_by_fqns`).
pub(super) fn kept_ops(graph: &Graph) -> impl Fn(usize) -> bool + '_ {
    move |index| match graph.ops[index].kind {
        OpKind::Attention { .. } | OpKind::Redistribute(Redistribution::ReduceScatter) => true,
        OpKind::Linear { .. } if graph.ops[index].params.len() > 1 => true,
        OpKind::Experts(ExpertOp::Titan(TitanOp::Choose | TitanOp::Count { .. } | TitanOp::Exchange)) => true,
        OpKind::Linear { .. } => {
            let plain = |op: &&Op| matches!(op.kind, OpKind::Linear { .. }) && op.params.len() == 1;
            let matmuls = graph.ops[..=index].iter().filter(plain).count();
            matmuls % 2 == 1
        }
        _ => false,
    }
}
