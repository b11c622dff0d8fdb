//! Main gradients: one buffer of all parameters' gradients in a type of its own, to which each micro-batch adds
//! (`megatron/core/distributed/distributed_data_parallel.py`, `_make_backward_post_hook`).

use super::{Eager, Frame, Storage};
use crate::model::graph::{Op, OpKind};
use crate::program::{Builder, DType, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;
use std::fmt::Debug;

/// A point of a chunk's run at which a training step may have hooks: around its blocks, and around its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A block of the chunk is about to run, for the first time or again.
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
    pub(super) shape: (u64, u64, u64),
    pub(super) dtype: DType,
    /// Whether the input is the rank's part of the sequence, gathered before it is multiplied.
    pub(super) gathers: bool,
    /// The linear's input and the gradient of its output.
    pub(super) held: [Storage; 2],
}

impl MainGradients {
    /// Main gradients of a type.
    pub fn new(dtype: DType, fused: bool, hooks: Box<dyn ParamHooks>) -> Self {
        MainGradients { dtype, fused, hooks }
    }
}

impl Eager {
    /// Tells the step that parameters are about to be read.
    pub(super) fn about_to_read(&mut self, op: &Op, frame: &Frame) {
        let count = match op.kind {
            OpKind::Megatron(kind) => kind.module_params(op.params.len()),
            _ => op.params.len(),
        };
        op.params.iter().take(count).for_each(|&param| self.is_reading(param, frame));
    }

    /// Tells the step that a parameter is about to be read.
    pub(super) fn is_reading(&mut self, param: usize, frame: &Frame) {
        // Hooks are no part of a CUDA graph.
        let apart = !self.in_graph();
        if let Some(main) = self.main.as_mut().filter(|_| apart) {
            main.hooks.read(&mut self.program, frame.params.index(param));
        }
    }

    /// Adds a gradient to the main gradients and lets go of it.
    pub(super) fn add_to_main(&mut self, param: usize, gradient: Storage, dtype: DType) {
        if self.arrives_in_graph(param, Some((gradient, dtype))) {
            return;
        }
        let bytes = self.bytes(gradient);
        let main = self.main.as_mut().expect("called where there are main gradients");
        let wide = bytes / dtype.bytes() * main.dtype.bytes();
        let (name, read) = match main.hooks.takes(&mut self.program, param) {
            Takes::Sum => ("aten.add_", bytes + wide),
            Takes::Copy => ("aten.copy_", bytes),
        };
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(wide) };
        self.program.launch(self.stream, name, work, self.settings.backward);
        self.let_go_of_taken(gradient);
        self.gradient_arrived(param);
    }

    /// Tells the step how far a chunk's run has come.
    pub fn reached(&mut self, at: Moment) {
        if let Some(main) = &mut self.main {
            main.hooks.reached(&mut self.program, at);
        }
    }

    /// The gradient is in the main gradients.
    pub(super) fn gradient_arrived(&mut self, param: usize) {
        if self.arrives_in_graph(param, None) {
            return;
        }
        if let Some(main) = &mut self.main {
            main.hooks.arrived(&mut self.program, param);
        }
    }

    /// Whether matmuls add weight gradients themselves.
    pub(super) fn fuses_accumulation(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.fused)
    }

    /// The matmul that makes a weight's gradient: one that adds it to the main gradient, where that is fused.
    pub(super) fn weight_layout(&self) -> MatmulLayout {
        match &self.main {
            Some(main) if main.fused => MatmulLayout::MainGradient(main.dtype),
            _ => MatmulLayout::WeightGradient,
        }
    }
}
