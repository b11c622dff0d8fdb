//! One table of operators: what every part of the program needs to know of each, in one file for each family.
//!
//! [`OpKind`] names them. A [`Row`] answers what is asked of all: what autograd saves, what a compiler, autocast, a checkpointing
//! policy and tensor-parallel ranks make of it. Of a [`Simple`] operator, one kernel over memory, the row says everything:
//! forward, backward and what a compiler makes of both follow from it. Others have rules of their own, an arm for each in
//! `runtime/eager/forward.rs` and `backward.rs` and in [`fuse`](super::fuse), and none of these matches takes "all others".
//!
//! To add a pointwise operator: a row in [`pointwise`] (an activation: an entry in [`activations`]), and whoever writes it into
//! a forward. To add another: a variant of [`OpKind`], its row here, and what the compiler then says is missing.

pub mod activations;
mod attention;
mod frameworks;
mod kind;
mod loss;
mod matmul;
pub mod moves;
mod norm;
pub mod pointwise;
mod row;

pub use activations::Activation;
pub use kind::{ChunkedLoss, OpKind, Rope};
pub use row::{
    Arguments, Autocast, Fused, Gradient, Gradients, Of, Parameters, Reads, Results, Row, Saved, Selective, Simple,
    Space, Step, Stop, Strides,
};

use super::graph::{Graph, Op};
use super::tensor::Redistribution;

impl Op {
    /// What is asked of every operator.
    pub fn row(&self) -> Row {
        match self.kind {
            OpKind::Simple(simple) => simple.row(),
            OpKind::Linear { .. } => matmul::linear(self.params.len(), self.inputs.len()),
            OpKind::Bmm { .. } => matmul::BMM,
            OpKind::RmsNorm { .. } => norm::RMS_NORM,
            OpKind::LayerNorm { .. } => norm::LAYER_NORM,
            OpKind::Softmax { .. } => norm::SOFTMAX,
            OpKind::Dropout => pointwise::DROPOUT,
            OpKind::CastWeight => moves::CAST_WEIGHT,
            OpKind::Split => moves::SPLIT,
            OpKind::Slice => moves::SLICE,
            OpKind::View => moves::VIEW,
            OpKind::Expand => moves::EXPAND,
            OpKind::MaskBias => moves::MASK_BIAS,
            OpKind::Unpad { .. } => moves::UNPAD,
            OpKind::Pad => moves::PAD,
            OpKind::Embedding => moves::embedding(self.inputs[0] == 0),
            OpKind::Redistribute(how) => moves::redistribute(how == Redistribution::ReduceScatter),
            OpKind::RotaryRows => attention::ROTARY_ROWS,
            OpKind::RotateComplex { .. } => attention::rotate_complex(self.inputs.len() > 1),
            OpKind::Rotate(_) => attention::ROTATE,
            OpKind::Attention { .. } => attention::ATTENTION,
            OpKind::Mamba2(_) => attention::MAMBA2,
            OpKind::GatedDelta(_) => attention::GATED_DELTA,
            OpKind::CrossEntropy { .. } => loss::CROSS_ENTROPY,
            OpKind::FlashCrossEntropy => loss::FLASH_CROSS_ENTROPY,
            OpKind::CompiledCrossEntropy { .. } => loss::COMPILED_CROSS_ENTROPY,
            OpKind::VocabularyLogProbs { .. } => loss::VOCABULARY_LOG_PROBS,
            OpKind::ChunkedLoss(_) => loss::CHUNKED_LOSS,
            OpKind::Preference(_) => loss::PREFERENCE,
            OpKind::FusedLinearCrossEntropy => loss::FUSED_LINEAR_CROSS_ENTROPY,
            OpKind::ParallelCrossEntropy => loss::PARALLEL_CROSS_ENTROPY,
            OpKind::Experts(kind) => frameworks::experts(kind),
            OpKind::Megatron(_) => frameworks::MEGATRON,
            OpKind::InternLm(_) => frameworks::INTERNLM,
            OpKind::Nanotron(_) => frameworks::NANOTRON,
        }
    }

    /// Whether it is one of torchtitan's matmuls of which every second is made again.
    fn is_counted(&self) -> bool {
        self.row().selective == Selective::EverySecond
    }
}

impl Graph {
    /// Whether a matmul that torchtitan's policy counts is the first, third, … of its block.
    pub fn counts_odd(&self, index: usize) -> bool {
        self.ops[..=index].iter().filter(|op| op.is_counted()).count() % 2 == 1
    }

    /// Whether torchtitan's operator-level policy keeps an operator's result: attention and matmuls with a bias (`addmm`),
    /// reduce-scatters, `topk` and all-to-alls always, other matmuls all but every second. A router's gate is made again
    /// (`per_op_sac_force_recompute_mm_shapes_by_fqns`).
    pub fn keeps(&self, index: usize) -> bool {
        match self.ops[index].row().selective {
            Selective::Always => true,
            Selective::EverySecond => self.counts_odd(index),
            Selective::Never => false,
        }
    }
}
