//! What becomes of gradients that are made inside a CUDA graph.

use super::{Eager, Storage};
use crate::program::{DType, Graphs};

impl Eager {
    /// Whether what is written is part of a CUDA graph.
    pub(super) fn in_graph(&self) -> bool {
        self.graphs.arrived.is_some()
    }

    /// A gradient has been made in a graph: whether that is so, and what becomes of it is for later.
    pub(super) fn arrives_in_graph(&mut self, param: usize, gradient: Option<(Storage, DType)>) -> bool {
        let Some(arrived) = &mut self.graphs.arrived else { return false };
        arrived.push((param, gradient));
        true
    }

    /// Lets go of a gradient that nobody reads: a captured backward returns it.
    pub(super) fn let_go_of_stand_in(&mut self, gradient: Storage) {
        match self.program.graphs_now() {
            Graphs::Captured => self.graphs.left.push(gradient),
            _ => self.release(gradient),
        }
    }

    /// Lets go of a gradient that a parameter has taken. Parameters take theirs on the stream on which data parallelism was set
    /// up; what another stream has used is not taken anew while a graph is captured (`record_stream`;
    /// `torch/csrc/autograd/input_buffer.cpp`; `CUDACachingAllocator.cpp`, `process_events`).
    pub(super) fn let_go_of_taken(&mut self, gradient: Storage) {
        match self.program.graphs_now() {
            Graphs::Both => self.graphs.left.push(gradient),
            _ => self.release(gradient),
        }
    }
}
