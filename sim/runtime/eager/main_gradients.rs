//! Main gradients: one buffer of all parameters' gradients in a type of its own, to which each micro-batch adds
//! (`megatron/core/distributed/distributed_data_parallel.py`, `_make_backward_post_hook`).

use super::shape::MatmulShape;
use std::fmt::Debug;

use super::storage::Storage;
use crate::program::{Builder, DType, Owner};

/// A point of a chunk's run at which a training step may have hooks: around its blocks, and around its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A block of the chunk is about to run, for the first time or as a recompute.
    Block(u64),
    /// It has run.
    BlockRan(u64),
    /// The chunk's backward begins.
    Backward,
    /// A block's backward begins.
    BlockBackward(u64),
    /// It has given its input a gradient.
    BlockReturned(u64),
    /// The chunk's backward has ended, with what it held.
    Returned,
}

/// What becomes of a parameter's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// It is added to what is there.
    Sum,
    /// It is copied to a place of its own.
    Copy,
}

/// What the training step does around a parameter's use, at that place in host order.
pub trait ParamHooks: Debug {
    /// The chunk's run has come to a point.
    fn reached(&mut self, _program: &mut Builder, _at: Moment) {}
    /// The micro-batch's gradient of the parameter has been made, and is about to go to the main gradients.
    fn takes(&mut self, _program: &mut Builder, _param: usize) -> Takes {
        Takes::Sum
    }
    /// A module is about to read the parameter in forward.
    fn read(&mut self, program: &mut Builder, param: usize);
    /// The micro-batch's gradient of the parameter is in the main gradients.
    fn arrived(&mut self, program: &mut Builder, param: usize);
}

/// Where gradients go.
#[derive(Debug)]
pub struct MainGradients {
    /// Type of the main gradients.
    pub dtype: DType,
    /// Whether a linear's weight gradient is added by the matmul that makes it (`--gradient-accumulation-fusion`).
    pub fused: bool,
    /// The step's hooks.
    pub hooks: Box<dyn ParamHooks>,
}

/// A weight gradient yet to be made: what its matmul reads is held until then (`WeightGradStore` of
/// sail-sg/zero-bubble-pipeline-parallelism, 39f2c186, `megatron/core/zbpp_utils.py`).
#[derive(Clone, Copy, Debug)]
pub struct WeightWork {
    pub(super) param: usize,
    /// Outputs, inputs and tokens.
    pub(super) shape: MatmulShape,
    pub(super) dtype: DType,
    /// Whether the input is the rank's part of the sequence, gathered before it is multiplied.
    pub(super) gathers: bool,
    /// The linear's input and the gradient of its output.
    pub(super) held: [Storage; 2],
    /// The part of the model that the linear belongs to.
    pub(super) owner: Owner,
}

impl MainGradients {
    /// Main gradients of a type.
    pub fn new(dtype: DType, fused: bool, hooks: Box<dyn ParamHooks>) -> Self {
        MainGradients { dtype, fused, hooks }
    }
}
