//! Cross-entropy over whole logits, in eager operators.

use super::frame::{Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, DType, Dispatch, MemoryKind};

/// What a loss does with logits and labels first.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    /// The logits are copied to fp32, if they are in another type.
    pub(super) upcast: bool,
    /// The labels are shifted by one.
    pub(super) shifts: bool,
}

impl Eager {
    /// `F.cross_entropy(logits.float(), labels)`: an fp32 copy if that is asked for, its log-softmax (kept), the mean.
    pub(super) fn cross_entropy(
        &mut self,
        graph: &Graph,
        op: &Op,
        loss: Loss,
        frame: &mut Frame,
        results: Results,
        dispatch: Dispatch,
    ) {
        let logits = &graph.values[op.inputs[0]];
        let upcast = loss.upcast && logits.dtype != DType::Fp32;
        let element = if upcast { 4 } else { logits.dtype.bytes() };
        let wide = logits.elements * element;
        let copy = upcast.then(|| {
            let storage = self.storage_as(wide, Category::Logits, "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, logits.bytes(), wide, dispatch);
            storage
        });
        let (padded, labels) = self.shifted_labels(graph, loss.shifts);
        if upcast && self.settings.unnamed_logits {
            // `F.cross_entropy(model(x).float(), y)`: nothing but the copy's node names them, which keeps no tensor.
            let logits = frame.slots[op.inputs[0]].take();
            logits.into_iter().for_each(|logits| self.release(logits));
        }
        let log_softmax = self.storage_as(wide, Category::Logits, "aten._log_softmax");
        self.pointwise("aten._log_softmax", MemoryKind::LogSoftmax, wide, wide, dispatch);
        let mean = self.storage(element, "aten.nll_loss_forward");
        let weight = self.storage(element, "aten.nll_loss_forward");
        self.pointwise("aten.nll_loss_forward", MemoryKind::Gather, graph.dims.tokens() * 12, 4, dispatch);
        if let Some(copy) = copy {
            self.release(copy);
        }
        padded.into_iter().for_each(|padded| self.release(padded));
        frame.slots[op.outputs[0]] = Some(mean);
        if results == Results::Save {
            frame.saved.extend([weight, log_softmax]);
            frame.saved.extend(labels);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            self.release(weight);
            self.release(log_softmax);
            labels.into_iter().for_each(|labels| self.release(labels));
        }
    }

    /// Labels one to the left (`F.pad(labels, (0, 1))[..., 1:].contiguous()`): what goes when the loss is there, and what
    /// backward needs. Of one sequence the shifted ones are a view of the padded ones.
    fn shifted_labels(&mut self, graph: &Graph, shifts: bool) -> (Option<Storage>, Option<Storage>) {
        if !shifts {
            return (None, None);
        }
        let (batch, tokens, dispatch) = (graph.dims.b, graph.dims.tokens(), self.settings.forward);
        let mut move_labels = |numbers: u64| {
            let storage = self.storage(8 * numbers, "aten.constant_pad_nd");
            self.pointwise("aten.constant_pad_nd", MemoryKind::Copy, 8 * tokens, 8 * numbers, dispatch);
            storage
        };
        let padded = move_labels(tokens + batch);
        if batch == 1 {
            return (None, Some(padded));
        }
        (Some(padded), Some(move_labels(tokens)))
    }

    /// Backward of the mean negative log-likelihood, of the log-softmax, and of the fp32 copy: three vocabulary-sized
    /// blocks in a row, of which two live together.
    pub(super) fn cross_entropy_backward(&mut self, node: Node<'_>, loss: Loss, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let logits = &graph.values[op.inputs[0]];
        let upcast = loss.upcast && logits.dtype != DType::Fp32;
        let (wide, dispatch) =
            (logits.elements * if upcast { 4 } else { logits.dtype.bytes() }, self.settings.backward);
        let (start, end) = Self::saved(frame, index);
        let labels = loss.shifts.then(|| frame.saved[end - 1]);
        let (weight, log_softmax) = (frame.saved[start], frame.saved[start + 1]);
        let logits_block = |this: &mut Self, bytes, name| this.storage_as(bytes, Category::BackwardTemporary, name);
        let nll = logits_block(self, wide, "aten.nll_loss_backward");
        self.pointwise("aten.nll_loss_backward", MemoryKind::Copy, 0, wide, dispatch);
        self.release(gradient);
        labels.into_iter().for_each(|labels| self.release(labels));
        self.release(weight);
        let softmax = logits_block(self, wide, "aten._log_softmax_backward_data");
        self.pointwise("aten._log_softmax_backward_data", MemoryKind::LogSoftmaxBackward, 2 * wide, wide, dispatch);
        self.release(nll);
        self.release(log_softmax);
        let mut result = softmax;
        if upcast {
            result = logits_block(self, logits.bytes(), "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, wide, logits.bytes(), dispatch);
            self.release(softmax);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
