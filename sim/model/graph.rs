//! Forward operators of one module, in the order Python runs them, with the points at which Python lets go of a value.
//!
//! Only forward is written down. What backward needs, allocates and computes follows from each operator's kind
//! (`runtime/eager/`), as PyTorch's autograd derives it (`tools/autograd/derivatives.yaml`). [`Graph`]s are made once per
//! distinct module and shared by all layers.

mod builder;
mod needs;
mod order;
mod param;

pub use builder::GraphBuilder;
pub use param::{Param, Role, Shape, Stored};

use super::documents::Documents;
pub use super::operators::{ChunkedLoss, OpKind};
use super::tensor::{Redistribution, TensorParallel};
use crate::program::{DType, Owner};

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
    /// Documents of a sequence, where attention stays inside each.
    pub documents: Option<Documents>,
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
    /// Whether it runs on a side stream, and overlaps with most others.
    pub side_stream: bool,
    /// The part of the model that it belongs to.
    pub owner: Owner,
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
    /// Parts that are recomputed in backward on their own.
    pub recomputed: Vec<Recomputed>,
    /// The order of backward, where it is not from the last operator to the first.
    pub order: Vec<usize>,
    /// By value, whether it needs a gradient; empty where all do.
    pub needs: Vec<bool>,
}

/// Operators in a row that are recomputed in backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputed {
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
    pub fn read_by(&self, param: ParamId) -> Option<&Op> {
        self.ops.iter().find(|op| op.params.contains(&param))
    }
}
