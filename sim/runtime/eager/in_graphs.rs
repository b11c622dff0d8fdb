//! What becomes of gradients that are made inside a CUDA graph.

use super::framework::CudaGraphs;
use super::{Eager, Storage};
use crate::program::{DType, Graphs};

impl Eager {
    /// What is known of CUDA graphs of blocks, where there can be some.
    pub(super) fn cuda_graphs(&mut self) -> Option<&mut CudaGraphs> {
        self.framework.megatron_mut().map(|megatron| &mut megatron.graphs)
    }

    /// Whether what is written is part of a CUDA graph.
    pub(super) fn in_graph(&self) -> bool {
        self.framework.megatron().is_some_and(|megatron| megatron.graphs.arrived.is_some())
    }

    /// A gradient has been made in a graph: whether that is so, and what becomes of it is for later.
    pub(super) fn arrives_in_graph(&mut self, param: usize, gradient: Option<(Storage, DType)>) -> bool {
        let Some(arrived) = self.cuda_graphs().and_then(|graphs| graphs.arrived.as_mut()) else { return false };
        arrived.push((param, gradient));
        true
    }

    /// Lets go of a gradient that nobody reads: a captured backward returns it.
    pub(super) fn let_go_of_stand_in(&mut self, gradient: Storage) {
        self.let_go_unless(Graphs::Captured, gradient);
    }

    /// Lets go of a gradient that a parameter has taken. Parameters take theirs on the stream on which data parallelism was set
    /// up; what another stream has used is not taken anew while a graph is captured (`record_stream`;
    /// `torch/csrc/autograd/input_buffer.cpp`; `CUDACachingAllocator.cpp`, `process_events`).
    pub(super) fn let_go_of_taken(&mut self, gradient: Storage) {
        self.let_go_unless(Graphs::Both, gradient);
    }

    /// Lets go of a storage, unless such graphs are written: those hold it.
    fn let_go_unless(&mut self, graphs: Graphs, storage: Storage) {
        if self.program.graphs_now() == graphs
            && let Some(state) = self.cuda_graphs()
        {
            state.left.push(storage);
        } else {
            self.release(storage);
        }
    }
}
