//! The hooks around a block, which has one parameter group, or two where its experts are sharded over other ranks than the
//! rest (`_fsdp_state.py`): both before forward, both after; in backward the second is done first. And around a loss that
//! runs the head itself: the head is gathered again, and its gradient reduced before the model's backward begins.

use super::training::Training;
use crate::model::graph::{ChunkedLoss, OpKind};
use crate::model::head::Loss;
use crate::runtime::eager::Frame;
use crate::runtime::fsdp::Reshard;

impl Training<'_> {
    /// A block's groups, in the order of their forward.
    fn groups_of(&self, layer: usize) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let units = &self.run.units;
        [units.blocks[layer], units.experts[layer]].into_iter().flatten()
    }

    /// Groups that a block names for prefetching in forward: of the blocks after it, or the head's.
    fn prefetched_in_forward(&self, layer: usize) -> Vec<usize> {
        let (fsdp, blocks) = (&self.job.fsdp, self.run.units.blocks.len());
        let after = layer + 1..blocks.min(layer + 1 + fsdp.forward_prefetch);
        let head = self.run.units.head.filter(|_| fsdp.prefetches_ends && layer + 1 == blocks);
        after.flat_map(|layer| self.groups_of(layer)).chain(head).collect()
    }

    /// The same in backward: of the blocks before it, or the embedding's.
    fn prefetched_in_backward(&self, layer: usize) -> Vec<usize> {
        let fsdp = &self.job.fsdp;
        let before = (layer.saturating_sub(fsdp.backward_prefetch)..layer).rev();
        let embedding = self.run.units.embedding.filter(|_| fsdp.prefetches_ends && layer == 0);
        before.flat_map(|layer| self.groups_of(layer).rev()).chain(embedding).collect()
    }

    /// What the embedding prefetches.
    pub(super) fn prefetched_by_embedding(&self) -> Vec<usize> {
        let prefetches = self.job.fsdp.prefetches_ends;
        (0..usize::from(prefetches)).flat_map(|first| self.groups_of(first)).collect()
    }

    /// What the head prefetches in backward.
    pub(super) fn prefetched_by_head(&self) -> Vec<usize> {
        let last = self.run.units.blocks.len().checked_sub(1).filter(|_| self.job.fsdp.prefetches_ends);
        last.into_iter().flat_map(|last| self.groups_of(last).rev()).collect()
    }

    /// Of a block's groups those whose first block it is, and those whose last. The group of a list of blocks is gathered before
    /// the first of them and let go after the last, in backward the other way round.
    pub(super) fn that_begin(&self, layer: usize) -> Vec<usize> {
        self.groups_of(layer)
            .filter(|&group| self.run.units.span(group).is_some_and(|(first, _)| first == layer))
            .collect()
    }

    fn that_end(&self, layer: usize) -> Vec<usize> {
        self.groups_of(layer)
            .filter(|&group| self.run.units.span(group).is_some_and(|(_, last)| last == layer))
            .collect()
    }

    /// Before a block's forward. What it names is prefetched when its last group is there.
    pub(super) fn block_forward_begins(&mut self, layer: usize) {
        let prefetch = self.prefetched_in_forward(layer);
        let mut groups = self.that_begin(layer).into_iter().peekable();
        while let Some(group) = groups.next() {
            let named: &[usize] = if groups.peek().is_none() { &prefetch } else { &[] };
            self.run.pre_forward(group, named);
        }
    }

    /// After it.
    pub(super) fn block_forward_ended(&mut self, layer: usize) {
        for group in self.that_end(layer) {
            self.run.post_forward(group);
        }
    }

    /// Before a block's backward.
    pub(super) fn block_backward_begins(&mut self, layer: usize) {
        let prefetch = self.prefetched_in_backward(layer);
        let mut groups = self.that_end(layer).into_iter().peekable();
        while let Some(group) = groups.next() {
            let named: &[usize] = if groups.peek().is_none() { &prefetch } else { &[] };
            self.run.pre_backward(group, named);
        }
    }

    /// After it.
    pub(super) fn block_backward_ended(&mut self, layer: usize) {
        for group in self.that_begin(layer).into_iter().rev() {
            self.run.post_backward(group);
        }
    }

    /// The rest of the head's operators, from the first after the loss was handed what it takes.
    pub(super) fn forward_loss(&mut self, head: &mut Frame, from: usize) {
        let graph = &self.graphs.head.graph;
        let parts = |kind: &OpKind| matches!(kind, OpKind::ChunkedLoss(ChunkedLoss::Parts { .. }));
        let parts = graph.ops.iter().position(|op| parts(&op.kind));
        let (Some(at), Some(group)) = (parts, self.run.units.head) else {
            return self.run.eager.forward_ops(graph, head, from..graph.ops.len());
        };
        self.run.eager.forward_ops(graph, head, from..at);
        match self.job.loss {
            Loss::ChunkedGradients { unshards: true, .. } => self.run.unshard_now(group),
            _ => self.run.pre_forward(group, &[]),
        }
        self.run.eager.forward_ops(graph, head, at..at + 1);
        self.run.part_backward(group);
        self.run.eager.forward_ops(graph, head, at + 1..at + 2);
        self.run.reshard_part(group);
        if matches!(self.job.loss, Loss::ChunkedGradients { unshards: true, .. }) {
            self.run.groups[group].reshard = Reshard::Always;
        }
        self.run.eager.forward_ops(graph, head, at + 2..graph.ops.len());
    }
}
