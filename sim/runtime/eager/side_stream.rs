//! Operators of a graph on a side stream (`torch.cuda.stream`), and what waits for them.
//!
//! Forward: an operator that reads what another stream has made waits for that stream. Backward runs each operator on the
//! stream of its forward; a gradient from another stream is waited for when the operator it reaches begins, by the event that
//! was recorded when it was made (`torch/csrc/autograd/input_buffer.cpp`, "Autograd Producer-Consumer Stream Syncs", from PyTorch
//! 2.9 on). Parameters take their gradients on the default stream, where data parallelism has made their nodes.

use super::frame::{Node, Results};
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Dispatch, StreamId};

impl Eager {
    /// The side stream, where some operators run on one.
    fn side(&self) -> Option<StreamId> {
        self.framework.megatron().and_then(|megatron| megatron.side).map(|side| side.stream)
    }

    /// Whether a collective that is waited for at once is issued on the stream that waits.
    pub(super) fn in_line(&self) -> bool {
        self.framework.megatron().and_then(|megatron| megatron.side).is_some_and(|side| side.in_line)
    }

    fn stream_of(&self, op: &Op) -> StreamId {
        if op.side_stream { self.side().unwrap_or(self.stream) } else { self.stream }
    }

    /// One operator on its stream, behind what it reads.
    pub(super) fn run(
        &mut self,
        graph: &Graph,
        op: &Op,
        frame: &mut Frame,
        results: Results,
        dispatch: Dispatch,
        cached: &[Storage],
    ) {
        let (before, outside) = (self.stream, self.program.at_work(op.owner));
        if !graph.order.is_empty()
            && let Some(side) = self.side()
        {
            if op.inputs.iter().any(|&input| graph.comes_from_elsewhere(op, input)) {
                let (reads, made) = if op.side_stream { (side, before) } else { (before, side) };
                self.program.wait_stream(reads, made);
            }
            self.stream = self.stream_of(op);
        }
        self.run_here(graph, op, frame, results, dispatch, cached);
        self.stream = before;
        self.program.enter(outside);
    }

    /// An operator's backward on its stream, behind the gradients it is given.
    pub(super) fn node(&mut self, node: Node<'_>, frame: &mut Frame) {
        let outside = self.program.at_work(node.op.owner);
        if node.graph.order.is_empty() {
            self.node_here(node, frame);
        } else {
            self.node_on_its_stream(node, frame);
        }
        self.program.enter(outside);
    }

    fn node_on_its_stream(&mut self, node: Node<'_>, frame: &mut Frame) {
        let Node { graph, op, .. } = node;
        let (before, own) = (self.stream, self.stream_of(op));
        self.stream = own;
        let came = frame.came.extract_if(.., |(value, _)| op.outputs.contains(value)).collect::<Vec<_>>();
        for (_, event) in came {
            self.program.wait(self.stream, event);
        }
        self.node_here(node, frame);
        for &input in &op.inputs {
            if frame.gradients[input].is_some() && graph.comes_from_elsewhere(op, input) {
                frame.came.push((input, self.program.record(self.stream)));
            }
        }
        self.stream = before;
    }

    /// What a parameter does with a gradient that has been made on the stream at hand.
    pub(super) fn on_the_default_stream(&mut self, take: impl FnOnce(&mut Eager)) {
        let Some(side) = self.side().filter(|&side| side == self.stream) else { return take(self) };
        self.program.wait_stream(COMPUTE, side);
        self.stream = COMPUTE;
        take(self);
        self.stream = side;
    }
}
