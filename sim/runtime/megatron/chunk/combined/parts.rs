//! Where a block is cut (`core/models/gpt/fine_grained_callables.py`, `build_layer_callables`, 0.16.1).

use std::ops::Range;

use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::{MegatronOp, RoutedOp};
use crate::runtime::eager::exchanges_rows;
use crate::runtime::megatron::chunk::Chunk;
use crate::runtime::megatron::mtp;

/// A part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Attention,
    Dispatch,
    Experts,
    Combine,
    /// What only a module that predicts further ahead has.
    Norm,
}

/// A block, or a module that predicts a token further ahead, among the operators of a graph.
#[derive(Clone, Debug)]
pub(super) struct Layer<'c> {
    pub(super) graph: &'c Graph,
    /// Where it begins, where its block ends, and where it ends.
    at: [usize; 3],
}

impl Layer<'_> {
    /// Which operators are in a part.
    pub(super) fn part(&self, node: Node) -> Range<usize> {
        let exchanges = |op: &Op| matches!(op.kind, OpKind::Megatron(MegatronOp::Routed(kind)) if exchanges_rows(kind));
        let sums = |op: &Op| matches!(op.kind, OpKind::Megatron(MegatronOp::BiasDropoutAdd { .. }));
        let [begins, end, ends] = self.at;
        let ops = &self.graph.ops[begins..end];
        let [dispatch, experts, combine] = match (ops.iter().position(exchanges), ops.iter().rposition(exchanges)) {
            // Rows go to the experts, with their weights or before them; rows come back.
            (Some(first), Some(last)) => {
                [first, first + ops[first..].iter().take_while(|op| exchanges(op)).count(), last].map(|at| begins + at)
            }
            _ => {
                let cut = ops.iter().position(sums).map_or(end, |at| begins + at + 1);
                [cut, cut, end]
            }
        };
        match node {
            Node::Attention => begins..dispatch,
            Node::Dispatch => dispatch..experts,
            Node::Experts => experts..combine,
            Node::Combine => combine..end,
            Node::Norm => end..ends,
        }
    }

    /// Whether the host waits for counts of rows before they go to the experts.
    pub(super) fn waits(&self) -> bool {
        let waits = |kind| matches!(kind, OpKind::Megatron(MegatronOp::Routed(RoutedOp::Permute { waits: true, .. })));
        self.graph.ops.iter().any(|op| waits(op.kind))
    }
}

impl Chunk {
    /// Where among the operators of what stands behind the last block its module begins and ends: before it is the final norm,
    /// which may be all there is.
    pub(super) fn cuts(&self) -> [usize; 2] {
        match self.module() {
            Some(Layer { at: [begins, _, ends], .. }) => [begins, ends],
            None => [1; 2],
        }
    }

    /// Its module that predicts a token further ahead.
    fn module(&self) -> Option<Layer<'_>> {
        let graph = self.head.as_ref().filter(|_| self.last && self.job.model.mtp_layers > 0)?;
        Some(Layer { graph, at: mtp::cuts(graph) })
    }

    /// Its blocks, and that module.
    pub(super) fn layer_count(&self) -> u64 {
        self.blocks.len() + u64::from(self.module().is_some())
    }

    /// One of these, and whether it is the module.
    pub(super) fn layer(&self, at: u64) -> (Layer<'_>, bool) {
        let block = || {
            let graph = self.blocks.graph(at);
            let end = graph.ops.len();
            Layer { graph, at: [0, end, end] }
        };
        match self.module().filter(|_| at == self.blocks.len()) {
            Some(module) => (module, true),
            None => (block(), false),
        }
    }
}
