//! Runs the backward of a graph: its nodes, last to first, with what is recomputed for them.

use super::frame::Node;
use super::megatron::second_run;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::Graph;
use crate::program::{DType, MemoryKind, Work};
use crate::units::Bytes;

impl Eager {
    /// Runs the backward of a frame from the gradient of its output, which it takes over. Returns the gradient of the
    /// input, where the input has one. Parameters' gradients go to the leaves.
    pub fn backward(&mut self, graph: &Graph, frame: &mut Frame, gradient: Storage) -> Option<Storage> {
        self.accumulate(frame, graph.output, gradient.into());
        self.backward_ops(graph, frame, 0..graph.ops.len());
        self.finish_backward(frame)
    }

    /// Starts a backward that [`Eager::backward_ops`] then runs in parts.
    pub fn start_backward(&mut self, graph: &Graph, frame: &mut Frame, gradient: Storage) {
        self.accumulate(frame, graph.output, gradient.into());
    }

    /// Runs the backward of a range of operators, last to first but where the graph has an order of its own.
    pub fn backward_ops(&mut self, graph: &Graph, frame: &mut Frame, range: std::ops::Range<usize>) {
        for step in 0..range.len() {
            let index = graph.back(&range, step);
            self.lay_together(graph, &graph.ops[index], frame);
            self.op_begins(frame, index, true);
            // The first node that saved something unpacks it, and the recompute runs.
            if graph.unpacks(&graph.ops[index]) && frame.checkpoint.is_some() && !frame.recomputed {
                self.recompute(graph, frame);
            }
            if self.inputs_only() {
                self.keep_saved(Node { graph, op: &graph.ops[index], index }, frame);
            }
            self.recompute_before(graph, frame, index);
            match Self::recomputed_part(graph, frame, index) {
                Some(at) if graph.recomputed[at].ops.end == index + 1 => self.part_backward(graph, frame, at),
                Some(_) => {}
                None => self.node(Node { graph, op: &graph.ops[index], index }, frame),
            }
            if self.second_run() && second_run::reduces(graph, 0, index) {
                self.reduce_maxima();
            }
            if !self.ends_itself(&graph.ops[index]) {
                self.op_ended(frame, index, true);
            }
        }
    }

    /// Ends a backward: the gradient of the input, where it has one.
    pub fn finish_backward(&mut self, frame: &mut Frame) -> Option<Storage> {
        for unused in std::mem::take(&mut frame.kept) {
            self.release(unused);
        }
        frame.gradients[0].take().map(|gradient| gradient.storage)
    }

    /// The gradient of the loss with respect to itself, which starts a backward.
    pub fn seed_gradient(&mut self, dtype: DType) -> Storage {
        let ones = self.temporary(dtype.bytes(), "aten.ones_like");
        self.program.launch(
            COMPUTE,
            "aten.ones_like",
            Work::Memory { kind: MemoryKind::Copy, read: Bytes(0), written: Bytes(4) },
            self.settings.backward,
        );
        ones
    }
}
