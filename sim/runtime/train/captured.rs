//! Forward, loss and backward of a micro-batch as one CUDA graph (`torchtitan/distributed/cudagraph.py`, 0.3.0).
//!
//! The first micro-batch of all runs eagerly on a stream of its own, whose blocks the default stream does not get. Before the second
//! is captured the allocator's cache is emptied (`torch.cuda.graph`); what it takes comes from pools of the graph's, which keep
//! their segments. Every later micro-batch is a replay: one launch of the host's, and no memory. Gradients stay where they are from
//! step to step and are set to zero in place (`torchtitan/trainer.py:874`): each reduction is added to them and let go of. Clipping
//! and the optimizer are outside.

use super::training::Training;
use crate::program::{Dispatch, Graphs, MemoryKind};
use crate::runtime::optimizer::param::elements;

impl Training<'_> {
    /// Before a micro-batch's forward.
    pub(super) fn graph_begins(&mut self, first: bool, micro_batch: u32) {
        let Some(graphs) = self.graphs_of_passes else { return };
        let program = &mut self.run.eager.program;
        match (first, micro_batch) {
            (true, 0) => program.warm_up(Some(graphs.warm_up)),
            (false, 0) => _ = program.graphs(Graphs::Both),
            _ => _ = program.graphs(Graphs::Replayed),
        }
    }

    /// After its backward.
    pub(super) fn graph_ends(&mut self, first: bool, last: bool) {
        let Some(graphs) = &mut self.graphs_of_passes else { return };
        let program = &mut self.run.eager.program;
        program.graphs(Graphs::Apart);
        program.warm_up(None);
        // With several micro-batches the first step has the second of them all.
        if first && !last && graphs.captured_at == 0 {
            graphs.captured_at = program.in_first();
        }
    }

    /// Sets gradients to zero in place, and ends the step.
    pub(super) fn zero_in_place(&mut self) {
        let bytes = elements(&self.run.owned()) * self.job.fsdp.mixed_precision.storage.bytes();
        self.run.eager.pointwise("aten._foreach_zero_", MemoryKind::Foreach, 0, bytes, Dispatch::EagerBackward);
        let program = &mut self.run.eager.program;
        if let Some(graphs) = self.graphs_of_passes.as_mut().filter(|graphs| graphs.captured_at == 0) {
            graphs.captured_at = program.in_first();
        }
    }
}
