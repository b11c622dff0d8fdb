//! `torch.compile` of the loss: `F.cross_entropy(logits.float(), labels)` as inductor generates it.
//!
//! The cast is fused away. Forward reads the logits as they are and keeps them, with the maximum and the logarithm of the
//! sum of each of T rows in fp32; backward reads them again and writes their gradient in their own type. What is saved is
//! what AOTAutograd's min-cut partitioner saves (PyTorch 2.15, `aot_eager_decomp_partition`): logits, labels, two numbers
//! a row, the number of targets. A row is read for its maximum and once more for its sum, the second time from cache.

use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, Dispatch, MemoryKind};

impl Eager {
    /// Forward; keeps the logits, two numbers a row, the number of targets.
    pub(super) fn compiled_cross_entropy(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let logits = &graph.values[op.inputs[0]];
        let rows = 4 * (logits.elements / graph.dims.v);
        let name = "triton_red_log_softmax";
        let (maximum, sum) = (self.storage(rows, name), self.storage(rows, name));
        self.pointwise(name, MemoryKind::Softmax, logits.bytes(), 2 * rows, Dispatch::Compiled);
        let (count, mean) = (self.storage(4, "triton_red_nll_loss"), self.storage(4, "triton_red_nll_loss"));
        self.pointwise("triton_red_nll_loss", MemoryKind::Gather, 5 * rows, 8, Dispatch::Compiled);
        frame.slots[op.outputs[0]] = Some(mean);
        let kept = frame.slots[op.inputs[0]].expect("an operator reads live values");
        let kept = self.retain(kept);
        frame.saved.extend([kept, maximum, sum, count]);
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Backward: the gradient of the logits, beside the logits.
    pub(super) fn compiled_cross_entropy_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        saved: &[Storage; 4],
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let logits = &graph.values[op.inputs[0]];
        let rows = 4 * (logits.elements / graph.dims.v);
        let name = "triton_red_log_softmax_backward";
        let result = self.storage_as(logits.bytes(), Category::BackwardTemporary, name);
        let read = logits.bytes() + 4 * rows;
        self.pointwise(name, MemoryKind::Softmax, read, logits.bytes(), Dispatch::Compiled);
        for &storage in saved {
            self.release(storage);
        }
        self.release(gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
