//! Forward operators of one module, in the order Python runs them, with the points at which Python lets go of a value.
//!
//! Only forward is written down. What backward needs, allocates and computes follows from each operator's kind
//! (`runtime/eager/`), as PyTorch's autograd derives it (`tools/autograd/derivatives.yaml`). [`Graph`]s are made once per
//! distinct module and shared by all layers.

mod builder;
mod order;

pub use builder::GraphBuilder;

use super::Activation;
use super::experts::ExpertOp;
use super::internlm::InternLmOp;
use super::megatron::MegatronOp;
use super::nanotron::NanotronOp;
use super::style::Rope;
use super::tensor::{Redistribution, TensorParallel};
use crate::program::DType;

/// A dimension of a tensor; the legend is in [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Sequences in the micro-batch.
    B,
    /// Sequence length.
    S,
    /// Model width.
    D,
    /// Query heads.
    N,
    /// Key-value heads.
    K,
    /// Head dimension.
    H,
    /// Feed-forward width.
    F,
    /// Vocabulary.
    V,
    /// Query, key and value heads together, N + 2K.
    Q,
    /// Rotated dimensions of a head.
    R,
    /// The dimensions of a head that are not rotated, H − R.
    U,
    /// The part of the sequence that a rank holds between split modules ([`super::tensor`]); else S.
    L,
    /// Experts.
    E,
    /// Copies of tokens sent to experts, B·S·k.
    C,
    /// Expert width.
    X,
    /// Dimensions of a head's values under latent attention.
    W,
    /// The vector that latent attention makes queries from.
    G,
    /// The vector that latent attention makes keys and values from.
    J,
}

/// Sizes behind the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Sequences in the micro-batch.
    pub b: u64,
    /// Sequence length.
    pub s: u64,
    /// Model width.
    pub d: u64,
    /// Query heads.
    pub n: u64,
    /// Key-value heads.
    pub k: u64,
    /// Head dimension.
    pub h: u64,
    /// Rotated dimensions of a head.
    pub r: u64,
    /// Feed-forward width.
    pub f: u64,
    /// Vocabulary.
    pub v: u64,
    /// Experts; 0: none.
    pub e: u64,
    /// Experts each token is sent to.
    pub top_k: u64,
    /// Expert width.
    pub x: u64,
    /// Dimensions of a head's values, ranks of queries and of keys and values under latent attention; else 0.
    pub latent: (u64, u64, u64),
    /// How heads, feed-forward width and vocabulary above are a rank's part.
    pub tensor: TensorParallel,
}

impl Dims {
    /// The size of one axis.
    pub fn size(&self, axis: Axis) -> u64 {
        match axis {
            Axis::B => self.b,
            Axis::S => self.s,
            Axis::D => self.d,
            Axis::N => self.n,
            Axis::K => self.k,
            Axis::H => self.h,
            Axis::F => self.f,
            Axis::V => self.v,
            Axis::Q => self.n + 2 * self.k,
            Axis::R => self.r,
            Axis::U => self.h - self.r,
            Axis::L => self.local_seq(),
            Axis::E => self.e,
            Axis::C => self.tokens() * self.top_k,
            Axis::X => self.x,
            Axis::W => self.latent.0,
            Axis::G => self.latent.1,
            Axis::J => self.latent.2,
        }
    }

    /// Elements of a tensor with these axes.
    pub fn elements(&self, shape: &[Axis]) -> u64 {
        shape.iter().map(|&axis| self.size(axis)).product()
    }

    /// Tokens in the micro-batch, T = B·S.
    pub fn tokens(&self) -> u64 {
        self.b * self.s
    }

    /// Tokens of a sequence that a rank holds between split modules.
    pub fn local_seq(&self) -> u64 {
        if self.tensor.sequence { self.s / self.tensor.ranks } else { self.s }
    }

    /// Tokens of the micro-batch that a rank holds between split modules.
    pub fn local_tokens(&self) -> u64 {
        self.b * self.local_seq()
    }
}

/// Index of a value in its graph.
pub type ValueId = usize;
/// Index of a parameter in its graph.
pub type ParamId = usize;

/// An activation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Name with its shape letters.
    pub name: &'static str,
    /// Axes, outermost first.
    pub shape: &'static [Axis],
    /// Elements.
    pub elements: u64,
    /// Element type.
    pub dtype: DType,
}

impl Value {
    /// Bytes of the tensor.
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.bytes()
    }
}

/// A parameter of a module; sharded on its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name within the module, such as `attention.wq.weight`.
    pub name: &'static str,
    /// Dimension 0.
    pub rows: u64,
    /// All other dimensions together.
    pub cols: u64,
}

impl Param {
    /// Elements.
    pub fn elements(&self) -> u64 {
        self.rows * self.cols
    }
}

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// `y = x·Wᵀ (+ b)`; parameters: weight, then bias if any. Without parameters these are further inputs.
    Linear {
        /// Columns of the weight.
        inputs: u64,
        /// Rows of the weight.
        outputs: u64,
    },
    /// RMSNorm in one kernel; parameter: weight. Keeps its input and one number per row.
    RmsNorm {
        /// Rows normalised.
        rows: u64,
    },
    /// LayerNorm; parameters: weight, bias if any. Keeps its input and two numbers per row.
    LayerNorm {
        /// Rows normalised.
        rows: u64,
    },
    /// Conversion to the output's type.
    Cast,
    /// A parameter in another type, made anew for one call ([`super::autocast`]); no inputs.
    CastWeight,
    /// A copy with rows next to each other, of a part that has them apart.
    Contiguous,
    /// Rows of a block's own rotary table, by the positions of its tokens; no inputs.
    RotaryRows,
    /// Product with the complex rotary table, broadcast over heads; the input is viewed as complex numbers. Its second input,
    /// if any, is what it reads of the table.
    RotateComplex {
        /// Elements (complex) of the table used.
        table: u64,
    },
    /// Rotary embedding written in real numbers; see [`Rope`]. [`Rope::Complex`] is written as casts and
    /// [`OpKind::RotateComplex`].
    Rotate(Rope),
    /// Key-value heads copied to each of their query heads.
    RepeatKv,
    /// One value seen by every query head; nothing is copied.
    Expand,
    /// Product of two values.
    Mul,
    /// Sum of two values, of which the second may lack the batch axis; or of one and what needs no gradient.
    Add,
    /// Product with, or quotient by, a number.
    Scale,
    /// Hyperbolic tangent; keeps its output.
    Tanh,
    /// Square, or a higher power; keeps its input.
    Square,
    /// Row indices 0 … S−1, made anew; no inputs.
    Positions,
    /// Pointwise activation. [`Activation::ReluSquared`] is written as [`Activation::Relu`] and [`OpKind::Square`].
    Act(Activation),
    /// Values joined on one axis; backward hands out views of the gradient.
    Concat,
    /// Views of one value as several; backward concatenates their gradients.
    Split,
    /// One value in another shape; backward hands the gradient on.
    View,
    /// A view of a part of one value; backward makes zeros of the whole and copies the part in.
    Slice,
    /// Products of B·N pairs of matrices, scores or what they weigh; keeps both. The first has `rows`, the second `columns`.
    Bmm {
        /// Rows of the first.
        rows: u64,
        /// Columns of the second.
        columns: u64,
        /// What is summed over.
        inner: u64,
    },
    /// Softmax over the last axis; keeps its result.
    Softmax {
        /// Rows normalised.
        rows: u64,
    },
    /// Zeroes a random part in training; keeps a mask of a byte for each element.
    Dropout,
    /// A bias of scores in the model's type, made for one call from a mask of booleans that all blocks share; no inputs.
    MaskBias,
    /// Fused attention over q, k, v; with a bias as a fourth input ([`OpKind::MaskBias`]) the memory-efficient kernel.
    Attention {
        /// Sliding window, in keys.
        window: Option<u64>,
        /// Whether a bias is added to the scores: a tensor of N·S·S numbers that all blocks share (ALiBi).
        bias: bool,
    },
    /// Tokens packed without padding ([`super::unpad`]).
    Unpad {
        /// Whether it is the first of its attention, for which the mask is made.
        first: bool,
    },
    /// Packed tokens put back where they were.
    Pad,
    /// Rows of a table; parameter: the table.
    Embedding,
    /// Negative log-likelihood over the vocabulary.
    CrossEntropy {
        /// Whether logits are cast to fp32 first.
        upcast: bool,
        /// Whether labels are shifted by one, for which they are padded.
        shifts: bool,
    },
    /// Negative log-likelihood over the vocabulary in one kernel each way, in the logits' own type.
    FlashCrossEntropy,
    /// Negative log-likelihood over the vocabulary, computed in fp32, as `torch.compile` generates it.
    CompiledCrossEntropy {
        /// Whether the loss is the mean over targets, or their sum.
        mean: bool,
    },
    /// Head and log-probabilities of the labels, over parts of the vocabulary; parameter: the head's weight.
    VocabularyLogProbs {
        /// Words of a part.
        words: u64,
    },
    /// A step of head and loss by parts, gradients made at once; [`ChunkedLoss::Parts`] has the head's weight.
    ChunkedLoss(ChunkedLoss),
    /// Head and loss in one, gradients made in forward; parameter: the head's weight.
    FusedLinearCrossEntropy,
    /// Negative log-likelihood over logits that are split on the vocabulary, in fp32 (DTensor's `loss_parallel`).
    ParallelCrossEntropy,
    /// An exchange between the ranks of a tensor-parallel group.
    Redistribute(Redistribution),
    /// A part of a mixture of experts.
    Experts(ExpertOp),
    /// An operator of Megatron-Core's own.
    Megatron(MegatronOp),
    /// An operator of InternLM's own.
    InternLm(InternLmOp),
    /// An operator of nanotron's own.
    Nanotron(NanotronOp),
}

/// A step of torchtitan's loss by parts; each reads first the hidden state, or what is left of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkedLoss {
    /// The buffer of the hidden state's gradient.
    Buffer,
    /// All parts; makes the last one's logits and its gradient of the hidden state.
    Parts {
        /// Parts of the sequence.
        chunks: u32,
        /// Whether cross-entropy is compiled.
        compiled: bool,
    },
    /// That gradient into the buffer.
    Last,
    /// The buffer in the hidden state's type; makes the loss.
    Whole,
}

/// One operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// Submodule it belongs to, such as `attention.wq`.
    pub module: &'static str,
    /// Values read.
    pub inputs: Vec<ValueId>,
    /// Values made.
    pub outputs: Vec<ValueId>,
    /// Parameters read.
    pub params: Vec<ParamId>,
    /// Values whose last Python reference goes away after this operator, in order.
    pub drops: Vec<ValueId>,
    /// Whether it runs on a stream beside that of most.
    pub beside: bool,
}

/// The forward of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Module name, `layers` for a block.
    pub name: &'static str,
    /// Sizes.
    pub dims: Dims,
    /// Values; the first is the input.
    pub values: Vec<Value>,
    /// Operators in order.
    pub ops: Vec<Op>,
    /// Parameters in registration order.
    pub params: Vec<Param>,
    /// The value returned.
    pub output: ValueId,
    /// Causal attention with this many queries per head, or none.
    pub causal: bool,
    /// Operators that run again in backward on their own.
    pub again: Vec<Again>,
    /// The order of backward, where it is not from the last operator to the first.
    pub order: Vec<usize>,
}

/// Operators in a row that run again in backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// Which.
    pub ops: std::ops::Range<usize>,
    /// A later operator, after which their results are let go of until backward comes to it; none: results are kept.
    pub until: Option<usize>,
}

impl Graph {
    /// Whether a value stays a DTensor where it is read: what is gathered for a split module
    /// (`PrepareModuleInput`, `use_local_output = False`).
    pub fn is_dtensor(&self, value: ValueId) -> bool {
        let gathers = |op: &Op| op.kind == OpKind::Redistribute(Redistribution::Gather) && op.outputs[0] == value;
        self.dims.tensor.sequence && self.ops.iter().any(gathers)
    }

    /// The first operator that reads a parameter.
    pub fn read_by(&self, param: ParamId) -> Option<OpKind> {
        self.ops.iter().find(|op| op.params.contains(&param)).map(|op| op.kind)
    }
}
