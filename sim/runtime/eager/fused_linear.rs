//! Liger's fused linear cross-entropy: gradients of hidden state and weight are made in forward, part by part.
//!
//! With T tokens, width D and V words a part has c = `next_power_of_2(⌈T / ⌈V/D⌉⌉)` tokens, so that its logits are about
//! as large as the hidden state. For each part: logits, their gradient in the same memory, its products with weight and
//! hidden state, the latter cast to fp32 before it is added. Python still names one part's logits while it makes the
//! next's. Source: `liger_kernel/ops/fused_linear_cross_entropy.py` (0.6 and later, gradients in the weight's type).

use super::frame::Node;
use super::shape::MatmulShape;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

impl Eager {
    /// Forward; keeps the two gradients.
    pub(super) fn fused_linear(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let (hidden, param) = (&graph.values[op.inputs[0]], &graph.params[op.params[0]]);
        let (words, width) = (param.rows, param.cols);
        let (tokens, dtype) = (hidden.elements / width, hidden.dtype);
        let (element, table) = (dtype.bytes(), param.elements());
        let dispatch = self.settings.forward;
        let part = tokens.div_ceil(words.div_ceil(width)).next_power_of_two();
        let of_hidden = self.storage(hidden.bytes(), "aten.zeros_like");
        let of_weight = self.storage_as(table * element, Category::Logits, "aten.zeros_like");
        self.pointwise("aten.zeros_like", MemoryKind::Copy, 0, hidden.bytes() + table * element, dispatch);
        let losses = self.storage(tokens * 4, "aten.zeros");
        let mask = self.storage(tokens, "aten.ne");
        // The mask is counted in 64-bit integers.
        let count = self.storage(8, "aten.sum");
        self.program.transient(Bytes(8 * tokens), COMPUTE, Category::Activation, "aten.sum");
        self.release(count);
        let mut earlier: Option<Storage> = None;
        for start in (0..tokens).step_by(part as usize) {
            let rows = part.min(tokens - start);
            let logits = self.storage_as(rows * words * element, Category::Logits, "aten.mm");
            self.matmul("aten.mm", MatmulShape { m: rows, n: words, k: width }, dtype, MatmulLayout::Forward, dispatch);
            let bytes = rows * words * element;
            self.pointwise("liger_cross_entropy_kernel", MemoryKind::Softmax, 2 * bytes, bytes, dispatch);
            let part_gradient = self.storage(rows * width * element, "aten.mm");
            self.matmul(
                "aten.mm",
                MatmulShape { m: rows, n: width, k: words },
                dtype,
                MatmulLayout::DataGradient,
                dispatch,
            );
            let moved = rows * width * element;
            self.pointwise("aten.copy_", MemoryKind::Copy, moved, moved, dispatch);
            self.release(part_gradient);
            if let Some(earlier) = earlier.replace(logits) {
                self.release(earlier);
            }
            let narrow = self.storage_as(table * element, Category::Logits, "aten.mm");
            self.matmul(
                "aten.mm",
                MatmulShape { m: words, n: width, k: rows },
                dtype,
                MatmulLayout::WeightGradient,
                dispatch,
            );
            let wide = if element < 4 {
                let wide = self.storage_as(table * 4, Category::Logits, "aten._to_copy");
                self.pointwise("aten._to_copy", MemoryKind::Elementwise, table * element, table * 4, dispatch);
                self.release(narrow);
                wide
            } else {
                narrow
            };
            self.pointwise("aten.add_", MemoryKind::Elementwise, table * (4 + element), table * element, dispatch);
            self.release(wide);
        }
        let loss = self.storage(4, "aten.sum");
        self.program.launch(
            COMPUTE,
            "aten.sum",
            Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(tokens * 4), written: Bytes(4) },
            dispatch,
        );
        for storage in [Some(losses), Some(mask), earlier].into_iter().flatten() {
            self.release(storage);
        }
        frame.slots[op.outputs[0]] = Some(loss);
        frame.saved.extend([of_hidden, of_weight]);
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Backward hands out what forward made.
    pub(super) fn fused_linear_backward(&mut self, node: Node<'_>, frame: &mut Frame) {
        let Node { graph, op, index } = node;
        let [of_hidden, of_weight] = Self::saved_by(frame, index);
        let dtype = graph.values[op.inputs[0]].dtype;
        self.accumulate(frame, op.inputs[0], of_hidden.into());
        let param = frame.params.index(op.params[0]);
        let (weight, dtype) = self.upcast(param, of_weight, dtype);
        self.store_leaf(param, weight, dtype);
    }
}
