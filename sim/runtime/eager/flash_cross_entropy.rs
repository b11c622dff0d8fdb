//! flash-attn's fused cross-entropy: one kernel forward and one backward over logits as they are.
//!
//! Forward reads the logits and writes a loss and a log-sum-exp in fp32 for each of T tokens; backward reads the logits
//! again and writes their gradient beside them, in their own type. No fp32 logits, no log-softmax: the logits themselves
//! are kept. A row is read for its maximum and once more for its sum, the second time from cache. The mean over targets
//! that are not ignored is Python's. Source: `flash_attn/losses/cross_entropy.py` (`SoftmaxCrossEntropyLossFn`,
//! `inplace_backward = False`) and `csrc/xentropy/`, versions 0.2.8 to 2.4.2; blocks in the order in which PyTorch 2.15
//! takes them for the same Python.

use super::frame::Node;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, MemoryKind};

impl Eager {
    /// Labels moved on by one, the last ignored.
    pub(in crate::runtime) fn targets(&mut self, tokens: u64) -> Storage {
        let dispatch = self.settings.forward;
        let targets = self.storage(8 * tokens, "aten.roll");
        self.pointwise("aten.roll", MemoryKind::Copy, 8 * tokens, 8 * tokens, dispatch);
        self.pointwise("aten.fill_", MemoryKind::Copy, 0, 8, dispatch);
        targets
    }

    /// The number of targets that are not ignored.
    pub(in crate::runtime) fn count_targets(&mut self, tokens: u64) -> Storage {
        let dispatch = self.settings.forward;
        let mask = self.storage(tokens, "aten.ne");
        self.pointwise("aten.ne", MemoryKind::Elementwise, 8 * tokens, tokens, dispatch);
        let count = self.storage(8, "aten.sum");
        let wide = self.storage(8 * tokens, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Elementwise, 9 * tokens, 8 * tokens, dispatch);
        self.release(wide);
        self.release(mask);
        count
    }

    /// Sets to zero what belongs to an ignored target, or to its gradient.
    pub(super) fn mask_ignored(&mut self, tokens: u64) {
        let dispatch = self.settings.forward;
        let mask = self.storage(tokens, "aten.eq");
        self.pointwise("aten.eq", MemoryKind::Elementwise, 8 * tokens, tokens, dispatch);
        self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, 5 * tokens, 4 * tokens, dispatch);
        self.release(mask);
    }

    /// Forward; keeps the logits, log-sum-exps, targets and their number.
    pub(super) fn flash_cross_entropy(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.forward);
        let targets = self.targets(tokens);
        let losses = self.storage(4 * tokens, "xentropy_cuda_lib.forward");
        let log_sum_exp = self.storage(4 * tokens, "xentropy_cuda_lib.forward");
        let read = logits.bytes() + 8 * tokens;
        self.pointwise("xentropy_cuda_lib.forward", MemoryKind::Softmax, read, 8 * tokens, dispatch);
        self.mask_ignored(tokens);
        let sum = self.storage(4, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Elementwise, 4 * tokens, 4, dispatch);
        let count = self.count_targets(tokens);
        let mean = self.storage(4, "aten.div");
        self.pointwise("aten.div", MemoryKind::Elementwise, 12, 4, dispatch);
        self.release(sum);
        self.release(losses);
        frame.slots[op.outputs[0]] = Some(mean);
        let kept = self.hold(frame, op.inputs[0]);
        frame.saved.extend([count, log_sum_exp, targets, kept]);
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Backward: the gradient of the logits, while the logits are still there.
    pub(super) fn flash_cross_entropy_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.backward);
        let [count, log_sum_exp, targets, kept] = Self::saved_by(frame, index);
        let quotient = self.pointwise_gradient("aten.div", 4, 12);
        self.release(gradient);
        self.release(count);
        let broadcast = self.temporary(4 * tokens, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, 4, 4 * tokens, dispatch);
        self.mask_ignored(tokens);
        let name = "xentropy_cuda_lib.backward";
        let result = self.storage_as(logits.bytes(), Category::BackwardTemporary, name);
        let read = logits.bytes() + 16 * tokens;
        self.pointwise(name, MemoryKind::Softmax, read, logits.bytes(), dispatch);
        for storage in [broadcast, quotient, kept, log_sum_exp, targets] {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
