//! `F.cross_entropy(logits.float(), labels)` as one graph of `torch.compile`, with or without the cast: the fp32 copy and
//! the log-softmax exist only inside kernels.
//!
//! Forward reads each row of V logits once, in their own type, and writes its maximum and its sum of exponentials in fp32
//! (an online softmax, arXiv 1805.02867); a small kernel then picks T logits for the loss. Kept for backward: the logits,
//! the two numbers per row and, for a mean, the number of targets. Backward is one kernel over the logits, whose gradient
//! it writes in their own type while they are still there. That moves 6 B for each bf16 logit, where eager's copies and gradients in fp32
//! move 36. Names, order and blocks are those of the code that inductor of PyTorch 2.15 generates; for more than 8,192
//! tokens it adds the loss up in two kernels, with less than 1 KiB between them, which is left out.

use super::frame::Node;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, Dispatch, MemoryKind};

impl Eager {
    /// Forward; keeps two statistics per row, the number of targets if the loss is their mean, and the logits.
    pub(super) fn compiled_cross_entropy(&mut self, graph: &Graph, op: &Op, mean: bool, frame: &mut Frame) {
        let logits = &graph.values[op.inputs[0]];
        let rows = logits.elements / graph.dims.v;
        let softmax = "triton_red_fused__log_softmax";
        let maximum = self.storage(4 * rows, softmax);
        let sum = self.storage(4 * rows, softmax);
        self.pointwise(softmax, MemoryKind::CompiledLogSoftmax, logits.bytes(), 8 * rows, Dispatch::Compiled);
        let pick = "triton_red_fused_nll_loss_forward";
        let loss = graph.values[op.outputs[0]].bytes();
        frame.slots[op.outputs[0]] = Some(self.storage(loss, pick));
        let count = mean.then(|| self.storage(loss, pick));
        let picked = rows * (8 + logits.dtype.bytes() + 8);
        self.pointwise(pick, MemoryKind::Gather, picked, loss, Dispatch::Compiled);
        let kept = self.hold(frame, op.inputs[0]);
        frame.saved.extend([Some(maximum), count, Some(sum), Some(kept)].into_iter().flatten());
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Backward: the gradient of the logits, while the logits are still there.
    pub(super) fn compiled_cross_entropy_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let logits = &graph.values[op.inputs[0]];
        let rows = logits.elements / graph.dims.v;
        let name = "triton_red_fused__log_softmax_backward_data";
        let result = self.storage_as(logits.bytes(), Category::BackwardTemporary, name);
        self.pointwise(
            name,
            MemoryKind::CompiledLogSoftmaxBackward,
            logits.bytes() + 16 * rows,
            logits.bytes(),
            Dispatch::Compiled,
        );
        let (start, end) = Self::saved(frame, index);
        for at in start..end {
            self.release(frame.saved[at]);
        }
        self.accumulate(frame, op.inputs[0], result.into());
        self.release(gradient);
    }
}
