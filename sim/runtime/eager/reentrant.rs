//! The backward of a block inside a reentrant checkpoint (`torch/utils/checkpoint.py`, `CheckpointFunction.backward`).
//!
//! Forward runs under `no_grad`, as that of the other checkpoint. Backward runs all of it again, to the block's output and with
//! nothing stopping early, and then a backward of its own inside the outer one. The outer engine holds the gradient that came in,
//! so nothing is added to it in place; output and gradient go when the inner backward is over.

use super::{Eager, Frame, Mode, Storage};
use crate::model::graph::Graph;
use crate::program::{Category, Pass};

impl Eager {
    /// Backward from the gradient of the block's output, which it takes over. Returns the gradient of the input, where the input
    /// has one.
    pub fn backward_reentrant(&mut self, graph: &Graph, frame: &mut Frame, gradient: Storage) -> Option<Storage> {
        let (pass, category) = (self.program.set_pass(Pass::Recompute), self.category);
        self.category = Category::Recompute;
        if let (Some(sent), Some(offload)) = (frame.sent.take(), self.settings.offload) {
            frame.input = self.bring_back(sent, offload);
        }
        let (mut again, output) = self.forward(graph, frame.input, frame.params, Mode::Train);
        self.program.set_pass(pass);
        self.category = category;
        let held = self.retain(gradient);
        let made = self.backward(graph, &mut again, gradient);
        for gone in [output, held, frame.input] {
            self.release(gone);
        }
        made
    }
}
