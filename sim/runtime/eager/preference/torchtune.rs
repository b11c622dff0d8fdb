//! `get_batch_log_probs` of torchtune (`torchtune/rlhf/sequence_processing.py`, 0.6.1): `gather(log_softmax(logits / T))`.

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use super::Sizes;
use crate::program::MemoryKind;

impl Eager {
    /// Each call makes a quotient and its log-softmax, and keeps the second, with labels and which of them count.
    pub(super) fn torchtune_log_probs(&mut self, sizes: Sizes, calls: u64, frame: &mut Frame, results: Results) {
        let (sequences, dispatch) = (sizes.sequences / calls, self.settings.forward);
        let (tokens, bytes) = (sizes.tokens(sequences), sizes.of_tokens(sequences));
        for _ in 0..calls {
            let labels = self.storage(8 * tokens, "aten.clone");
            self.pointwise("aten.clone", MemoryKind::Copy, 8 * tokens, 8 * tokens, dispatch);
            let counted = self.storage(tokens, "aten.ne");
            self.pointwise("aten.ne", MemoryKind::Elementwise, 8 * tokens, tokens, dispatch);
            let ignored = self.storage(tokens, "aten.eq");
            self.pointwise("aten.eq", MemoryKind::Elementwise, 8 * tokens, tokens, dispatch);
            self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, 9 * tokens, 8 * tokens, dispatch);
            self.release(ignored);
            let quotient = self.logits_block("aten.div", MemoryKind::Elementwise, bytes, bytes);
            let log_softmax = self.logits_block("aten._log_softmax", MemoryKind::LogSoftmax, bytes, bytes);
            self.release(quotient);
            let picked = self.storage(4 * tokens, "aten.gather");
            self.pointwise("aten.gather", MemoryKind::Gather, 12 * tokens, 4 * tokens, dispatch);
            let masked = self.storage(4 * tokens, "aten.mul");
            self.pointwise("aten.mul", MemoryKind::Elementwise, 5 * tokens, 4 * tokens, dispatch);
            self.pointwise("aten.sum", MemoryKind::Elementwise, 4 * tokens, 4 * sequences, dispatch);
            self.release(masked);
            self.release(picked);
            let kept = [log_softmax, labels, counted];
            if results == Results::Save {
                frame.saved.extend(kept);
            } else {
                kept.into_iter().for_each(|storage| self.release(storage));
            }
        }
        if results == Results::Save {
            // The mean of chosen and of rejected logits, for the log.
            for _ in 0..2 {
                self.pointwise("aten.mean", MemoryKind::Elementwise, sizes.whole(sizes.sequences) / 2, 4, dispatch);
            }
        }
    }

    /// The last call first. Its gradient is as large as all logits, and waits for the other's, which is added to it.
    pub(super) fn torchtune_backward(
        &mut self,
        node: Node<'_>,
        (sizes, calls): (Sizes, u64),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { op, index, .. } = node;
        let sequences = sizes.sequences / calls;
        let (tokens, bytes) = (sizes.tokens(sequences), sizes.of_tokens(sequences));
        let (start, end) = Self::saved(frame, index);
        let kept = frame.saved[start..end].to_vec();
        for call in kept.rchunks(3) {
            let masked = self.pointwise_gradient("aten.mul", 4 * tokens, 5 * tokens);
            self.release(call[2]);
            let picked = self.picked_gradient(bytes, tokens);
            self.release(masked);
            self.release(call[1]);
            let name = "aten._log_softmax_backward_data";
            let of_quotient = self.gradient_block(name, MemoryKind::LogSoftmaxBackward, 2 * bytes, bytes);
            self.release(picked);
            self.release(call[0]);
            let quotient = self.gradient_block("aten.div", MemoryKind::Elementwise, bytes, bytes);
            self.release(of_quotient);
            let mut part = self.part_of_zeros(quotient, sizes.whole(sequences));
            if calls > 1 {
                part = self.part_of_zeros(part, sizes.whole(sizes.sequences));
            }
            self.accumulate(frame, op.inputs[0], part.into());
        }
        self.release(gradient);
    }
}
