//! CUDA graphs: captured, operators take memory once, from a pool of the graphs' own, and nothing runs; replayed, they are one launch
//! of the host's, and their memory is there already (`torch/cuda/graphs.py`, `c10/cuda/CUDACachingAllocator.cpp`, PyTorch 2.15).

use super::{Program, StreamId};

/// What becomes of what is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Graphs {
    /// The host issues it, one by one.
    #[default]
    Apart,
    /// It is captured: of it memory alone is left.
    Captured,
    /// It is a graph that was captured before: it takes no memory.
    Replayed,
    /// It is a graph, and what was captured: [`take_graphs_memory_once`](super::Builder::take_graphs_memory_once) moves its memory before the steps.
    Both,
}

impl Graphs {
    /// Whether it runs as one graph.
    pub(super) fn runs(self) -> bool {
        matches!(self, Graphs::Replayed | Graphs::Both)
    }
}

impl Program {
    /// The pool from which a captured operator takes what it takes for a stream.
    pub(super) fn pool_of(&self, stream: StreamId) -> StreamId {
        self.graph_pool.map_or(stream, |pool| {
            let last = self.streams.len() as u8 - 1;
            StreamId((pool.0 + stream.0).min(last))
        })
    }
}
