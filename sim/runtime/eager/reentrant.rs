//! The backward of a block inside a reentrant checkpoint (`torch/utils/checkpoint.py`, `CheckpointFunction.backward`).
//!
//! Forward runs under `no_grad`, as that of the other checkpoint. Backward recomputes all of it, to the block's output and with
//! nothing stopping early, and then a backward of its own inside the outer one. The outer engine holds the gradient that came in,
//! so nothing is added to it in place; output and gradient go when the inner backward is over.

use super::{Eager, Frame, Mode, Storage};
use crate::model::graph::Graph;
use crate::program::{Category, Pass};

/// A block's second forward, and what the checkpoint holds until its backward is over.
#[derive(Debug)]
pub struct Reentrant {
    frame: Frame,
    held: Vec<Storage>,
}

impl Eager {
    /// Recomputes the block.
    pub fn forward_reentrant(&mut self, graph: &Graph, frame: &mut Frame) -> Reentrant {
        let (pass, category) = (self.program.set_pass(Pass::Recompute), self.category);
        self.category = Category::Recompute;
        if let (Some(sent), Some(offload)) = (frame.sent.take(), self.settings.offload) {
            frame.input = self.bring_back(sent, offload);
        }
        let (recomputed, output) = self.forward(graph, frame.input, frame.params, Mode::Train);
        self.program.set_pass(pass);
        self.category = category;
        Reentrant { frame: recomputed, held: vec![output, frame.input] }
    }

    /// Its backward from the gradient of the output, which it takes over. Returns the gradient of the input, where the input has
    /// one.
    pub fn backward_reentrant(&mut self, graph: &Graph, block: &mut Reentrant, gradient: Storage) -> Option<Storage> {
        block.held.insert(1, self.retain(gradient));
        self.backward(graph, &mut block.frame, gradient)
    }

    /// The checkpoint's backward returns.
    pub fn end_reentrant(&mut self, block: Reentrant) {
        for gone in block.held {
            self.release(gone);
        }
    }
}
