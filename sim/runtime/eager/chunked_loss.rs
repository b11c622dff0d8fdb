//! torchtitan's `ChunkedCELoss`: head, loss and their backward for one part of the sequence after the other
//! (`torchtitan/components/loss.py` at 6b960233).
//!
//! For a part of t tokens: logits, cross-entropy, the logits' gradient, the weight's, which is cast to fp32 and added to
//! those before, and the hidden state's, which is copied into an fp32 buffer of all tokens. Python names one part's logits
//! until the next part's take their place. After the last part the weight's gradient is reduced; only then are the last
//! hidden gradients copied. The model's backward begins with the buffer in the hidden state's type.

use super::frame::Node;
use super::shape::MatmulShape;
use super::{Eager, Frame, Storage};
use crate::model::graph::{ChunkedLoss, Graph, Op};
use crate::program::{Category, DType, Dispatch, MatmulLayout, MemoryKind};

/// Sizes of a part.
#[derive(Clone, Copy)]
struct Part {
    tokens: u64,
    width: u64,
    words: u64,
    dtype: DType,
}

impl Eager {
    /// Forward of one of its operators.
    pub(super) fn chunked_loss(&mut self, graph: &Graph, op: &Op, kind: ChunkedLoss, frame: &mut Frame) {
        let hidden = &graph.values[op.inputs[0]];
        let dispatch = self.settings.forward;
        let slot = |frame: &Frame, value: usize| frame.slots[value].expect("an operator reads live values");
        match kind {
            ChunkedLoss::Buffer => {
                let bytes = graph.values[op.outputs[0]].bytes();
                let buffer = self.storage(bytes, "aten.zeros_like");
                self.pointwise("aten.zeros_like", MemoryKind::Copy, 0, bytes, dispatch);
                frame.slots[op.outputs[0]] = Some(buffer);
            }
            ChunkedLoss::Parts { chunks, compiled } => {
                let (words, width) = (graph.params[op.params[0]].rows, graph.params[op.params[0]].cols);
                let tokens = hidden.elements / width / u64::from(chunks);
                let part = Part { tokens, width, words, dtype: hidden.dtype };
                let mut logits: Option<Storage> = None;
                for at in 0..chunks {
                    let [made, of_weight, of_hidden] = self.loss_of_part(part, compiled, logits.take());
                    self.part_of_weight(part, of_weight, frame.params.index(op.params[0]));
                    if at + 1 < chunks {
                        self.copy_part(part, of_hidden);
                        logits = Some(made);
                    } else {
                        frame.slots[op.outputs[0]] = Some(made);
                        frame.slots[op.outputs[1]] = Some(of_hidden);
                    }
                }
            }
            ChunkedLoss::Last => {
                let part = &graph.values[op.inputs[0]];
                let storage = slot(frame, op.inputs[0]);
                frame.slots[op.inputs[0]] = None;
                let width = graph.dims.d;
                self.copy_part(Part { tokens: part.elements / width, width, words: 0, dtype: part.dtype }, storage);
                frame.slots[op.outputs[0]] = Some(self.storage(4, "aten.add"));
            }
            ChunkedLoss::Whole => {
                let bytes = hidden.bytes();
                let gradient = self.storage(bytes, "aten._to_copy");
                self.pointwise("aten._to_copy", MemoryKind::Elementwise, 4 * hidden.elements, bytes, dispatch);
                frame.saved.push(gradient);
                frame.slots[op.outputs[0]] = Some(self.storage(4, "aten.div"));
            }
        }
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Logits of a part and the gradients of weight and hidden states.
    fn loss_of_part(&mut self, part: Part, compiled: bool, earlier: Option<Storage>) -> [Storage; 3] {
        let Part { tokens, width, words, dtype } = part;
        let (narrow, wide) = (tokens * words * dtype.bytes(), 4 * tokens * words);
        let (forward, backward) = (self.settings.forward, self.settings.backward);
        let logits = self.storage_as(narrow, Category::Logits, "aten.mm");
        self.matmul("aten.mm", MatmulShape { m: tokens, n: words, k: width }, dtype, MatmulLayout::Forward, forward);
        if let Some(earlier) = earlier {
            self.release(earlier);
        }
        let of_logits = if compiled {
            let statistics = [0; 2].map(|_| self.storage(4 * tokens, "triton_red_fused__log_softmax"));
            self.pointwise(
                "triton_red_fused__log_softmax",
                MemoryKind::Softmax,
                narrow,
                8 * tokens,
                Dispatch::Compiled,
            );
            let result = self.storage_as(narrow, Category::Logits, "triton_red_fused__log_softmax_backward_data");
            let name = "triton_red_fused__log_softmax_backward_data";
            self.pointwise(name, MemoryKind::Softmax, narrow, narrow, Dispatch::Compiled);
            for storage in statistics {
                self.release(storage);
            }
            result
        } else {
            let mut block = |kind, name, read: u64, written: u64, dispatch| {
                let storage = self.storage_as(written, Category::Logits, name);
                self.pointwise(name, kind, read, written, dispatch);
                storage
            };
            let cast = block(MemoryKind::Elementwise, "aten._to_copy", narrow, wide, forward);
            let softmax = block(MemoryKind::Softmax, "aten._log_softmax", wide, wide, forward);
            self.release(cast);
            let mut block = |kind, name, read: u64, written: u64| {
                let storage = self.storage_as(written, Category::Logits, name);
                self.pointwise(name, kind, read, written, backward);
                storage
            };
            let picked = block(MemoryKind::Copy, "aten.nll_loss_backward", 0, wide);
            let of_wide = block(MemoryKind::Softmax, "aten._log_softmax_backward_data", 2 * wide, wide);
            self.release(picked);
            self.release(softmax);
            let result = self.storage_as(narrow, Category::Logits, "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, wide, narrow, backward);
            self.release(of_wide);
            result
        };
        let of_weight = self.storage_as(words * width * dtype.bytes(), Category::Logits, "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: words, n: width, k: tokens },
            dtype,
            MatmulLayout::WeightGradient,
            backward,
        );
        let of_hidden = self.storage(tokens * width * dtype.bytes(), "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: tokens, n: width, k: words },
            dtype,
            MatmulLayout::DataGradient,
            backward,
        );
        self.release(of_logits);
        [logits, of_weight, of_hidden]
    }

    /// The weight's gradient of a part in fp32, kept or added to what there is.
    fn part_of_weight(&mut self, Part { width, words, dtype, .. }: Part, narrow: Storage, param: usize) {
        let wide = if dtype == DType::Fp32 {
            narrow
        } else {
            let bytes = 4 * words * width;
            let wide = self.storage_as(bytes, Category::UnshardedGradient, "aten._to_copy");
            self.pointwise(
                "aten._to_copy",
                MemoryKind::Elementwise,
                bytes / 4 * dtype.bytes(),
                bytes,
                self.settings.backward,
            );
            self.release(narrow);
            wide
        };
        self.store_leaf(param, wide, DType::Fp32);
    }

    /// A part's hidden gradient, cast and copied into the buffer.
    fn copy_part(&mut self, Part { tokens, width, dtype, .. }: Part, storage: Storage) {
        let (bytes, dispatch) = (4 * tokens * width, self.settings.forward);
        let cast = self.storage(bytes, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, bytes / 4 * dtype.bytes(), bytes, dispatch);
        self.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, dispatch);
        self.release(cast);
        self.release(storage);
    }

    /// Backward hands out the gradient that forward made.
    pub(super) fn chunked_loss_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { op, index, .. } = node;
        let [of_hidden] = Self::saved_by(frame, index);
        self.release(gradient);
        self.accumulate(frame, op.inputs[0], of_hidden.into());
    }
}
