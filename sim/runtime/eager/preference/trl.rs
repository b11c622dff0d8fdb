//! `selective_log_softmax` of TRL and what its trainer logs (`trl/trainer/utils.py`, `dpo_trainer.py`, 1.13.0): one sequence after the
//! other. Autograd holds the gradients of all sequences until the last is there, and joins them.

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use super::Sizes;
use crate::model::graph::Op;
use crate::program::{DType, MemoryKind};

/// Rows of the logits whose entropy is computed at once (`entropy_from_logits`).
const ENTROPY_ROWS: u64 = 128;

impl Eager {
    pub(super) fn trl_log_probs(&mut self, op: &Op, sizes: Sizes, frame: &mut Frame, results: Results) {
        let (dispatch, saves) = (self.settings.forward, results == Results::Save);
        let (tokens, bytes) = (sizes.tokens(1), sizes.of_tokens(1));
        let element = sizes.dtype.bytes();
        let all = sizes.tokens(sizes.sequences);
        let mut made = vec![];
        if sizes.dtype == DType::Fp32 {
            // The logits themselves are kept: for their log-sum-exp, and as what was picked from.
            made.push(self.storage(4 * all, "aten.gather"));
            self.pointwise("aten.gather", MemoryKind::Gather, 12 * all, 4 * all, dispatch);
            if saves {
                let logits = self.hold(frame, op.inputs[0]);
                frame.saved.push(logits);
            }
            for _ in 0..sizes.sequences {
                self.pointwise("aten.amax", MemoryKind::Elementwise, bytes, 4 * tokens, dispatch);
                let exponents = self.logits_block("aten.sub", MemoryKind::Elementwise, bytes, bytes);
                self.pointwise("aten.exp_", MemoryKind::Elementwise, bytes, bytes, dispatch);
                self.pointwise("aten.sum", MemoryKind::Elementwise, bytes, 4 * tokens, dispatch);
                self.release(exponents);
            }
            self.pointwise("aten.sub", MemoryKind::Elementwise, 8 * all, 4 * all, dispatch);
        } else {
            let mut named: Option<Storage> = None;
            for _ in 0..sizes.sequences {
                let row = self.logits_block("aten._log_softmax", MemoryKind::LogSoftmax, bytes, bytes);
                if saves {
                    frame.saved.push(self.retain(row));
                }
                // The name of the sequence before is taken over.
                if let Some(before) = named.replace(row) {
                    self.release(before);
                }
                made.push(self.storage(element * tokens, "aten.gather"));
                self.pointwise("aten.gather", MemoryKind::Gather, 12 * tokens, element * tokens, dispatch);
            }
            named.into_iter().for_each(|row| self.release(row));
        }
        let stacked = self.storage(element * all, "aten.stack");
        self.pointwise("aten.stack", MemoryKind::Copy, element * all, element * all, dispatch);
        made.into_iter().for_each(|part| self.release(part));
        let ignored = self.storage(all, "aten.eq");
        self.pointwise("aten.eq", MemoryKind::Elementwise, 8 * all, all, dispatch);
        self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, all, element * all, dispatch);
        self.pointwise("aten.sum", MemoryKind::Elementwise, element * all, element * sizes.sequences, dispatch);
        self.release(ignored);
        self.release(stacked);
    }

    pub(super) fn trl_backward(&mut self, node: Node<'_>, sizes: Sizes, frame: &mut Frame, gradient: Storage) {
        let Node { op, index, .. } = node;
        let (tokens, bytes) = (sizes.tokens(1), sizes.of_tokens(1));
        let (start, end) = Self::saved(frame, index);
        let kept = frame.saved[start..end].to_vec();
        let wide = sizes.dtype == DType::Fp32;
        let mut rows = vec![];
        for sequence in (0..sizes.sequences as usize).rev() {
            rows.push(if wide {
                let difference = self.gradient_block("aten.sub", MemoryKind::Elementwise, bytes, bytes);
                let exponents = self.gradient_block("aten.exp", MemoryKind::Elementwise, bytes, bytes);
                let row = self.gradient_block("aten.mul", MemoryKind::Elementwise, bytes, bytes);
                self.release(exponents);
                self.release(difference);
                row
            } else {
                let picked = self.picked_gradient(bytes, tokens);
                let name = "aten._log_softmax_backward_data";
                let row = self.gradient_block(name, MemoryKind::LogSoftmaxBackward, 2 * bytes, bytes);
                self.release(picked);
                self.release(kept[sequence]);
                row
            });
        }
        let all = sizes.of_tokens(sizes.sequences);
        let joined = self.gradient_block("aten.stack", MemoryKind::Copy, all, all);
        rows.into_iter().for_each(|row| self.release(row));
        if wide {
            let picked = self.picked_gradient(all, sizes.tokens(sizes.sequences));
            self.release(kept[0]);
            self.pointwise("aten.add", MemoryKind::Elementwise, 2 * all, all, self.settings.backward);
            self.release(picked);
        }
        let whole = self.part_of_zeros(joined, sizes.whole(sizes.sequences));
        self.release(gradient);
        self.accumulate(frame, op.inputs[0], whole.into());
    }

    /// Entropy of the policy's predictions, means of its logits, and how often the chosen word is the likeliest. All tokens are taken
    /// to be of the completion.
    pub(super) fn trl_metrics(&mut self, sizes: Sizes) {
        let dispatch = self.settings.forward;
        let (element, words) = (sizes.dtype.bytes(), sizes.words);
        let all = sizes.of_tokens(sizes.sequences);
        // Positions that predict nothing lie between, so the rows are copied.
        let flat = self.logits_block("aten.clone", MemoryKind::Copy, all, all);
        let mut named: Option<Storage> = None;
        let mut left = sizes.tokens(sizes.sequences);
        while left > 0 {
            let rows = left.min(ENTROPY_ROWS);
            let bytes = rows * words * element;
            let log_softmax = self.logits_block("aten._log_softmax", MemoryKind::LogSoftmax, bytes, bytes);
            if let Some(before) = named.replace(log_softmax) {
                self.release(before);
            }
            let exponents = self.logits_block("aten.exp", MemoryKind::Elementwise, bytes, bytes);
            let product = self.logits_block("aten.mul", MemoryKind::Elementwise, 2 * bytes, bytes);
            self.release(exponents);
            self.pointwise("aten.sum", MemoryKind::Elementwise, bytes, element * rows, dispatch);
            self.release(product);
            self.pointwise("aten.neg", MemoryKind::Elementwise, element * rows, element * rows, dispatch);
            left -= rows;
        }
        self.release(flat);
        named.into_iter().for_each(|row| self.release(row));
        let half = sizes.of_tokens(sizes.sequences / 2);
        for _ in ["chosen", "rejected"] {
            let of_completions = self.logits_block("aten.index", MemoryKind::Gather, half, half);
            self.pointwise("aten.mean", MemoryKind::Elementwise, half, element, dispatch);
            self.release(of_completions);
        }
        self.pointwise("aten.argmax", MemoryKind::Elementwise, half, 8, dispatch);
    }
}
