//! Head and log-probabilities over parts of the vocabulary, in eager operators (prime-rl's `FusedOutputLinear`, January
//! 2026: `trainer/models/layers/lm_head.py`).
//!
//! For N tokens and parts of C words, forward makes a part's logits, casts them to fp32, scales them in place, and carries
//! a maximum, a sum and a weighted sum over the parts: for each logit 2 B written by the matmul and 54 B moved by eleven
//! operators, beside small ones over N. Backward makes the logits again and, in fp32, their gradient, casts it twice, and
//! adds two products to the gradients of hidden state and weight: four matmuls in all where whole logits take three. Both
//! ask the device whether any label is in the part, and wait for the answer. Names in a loop hold their blocks until the
//! next part's take their place.

use super::frame::Node;
use super::shape::MatmulShape;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, DType, Dispatch, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

/// What a part is made of.
#[derive(Clone, Copy)]
struct Part {
    tokens: u64,
    words: u64,
    width: u64,
    dtype: DType,
}

impl Part {
    /// Bytes of its logits in fp32.
    fn wide(&self) -> u64 {
        4 * self.tokens * self.words
    }

    /// And in the model's type.
    fn narrow(&self) -> u64 {
        self.tokens * self.words * self.dtype.bytes()
    }

    /// Bytes of one fp32 number for each token.
    fn column(&self) -> u64 {
        4 * self.tokens
    }
}

/// Names that hold blocks from one part to the next.
#[derive(Default)]
struct Names {
    logits: Option<Storage>,
    scaled: Option<Storage>,
    probabilities: Option<Storage>,
    gradient: Option<Storage>,
}

impl Eager {
    /// The parts of a head.
    fn parts(graph: &Graph, op: &Op, words: u64) -> Vec<Part> {
        let (hidden, param) = (&graph.values[op.inputs[0]], &graph.params[op.params[0]]);
        let (tokens, width, dtype) = (hidden.elements / param.cols, param.cols, hidden.dtype);
        let words = |start: u64| words.min(param.rows - start);
        (0..param.rows)
            .step_by(words(0).max(1) as usize)
            .map(|start| Part { tokens, words: words(start), width, dtype })
            .collect()
    }

    fn name(&mut self, name: &mut Option<Storage>, by: Storage) {
        if let Some(old) = name.replace(by) {
            self.release(old);
        }
    }

    /// Logits of a part in the model's type, cast to fp32, scaled in place.
    fn scaled_logits(&mut self, part: Part, names: &mut Names, dispatch: Dispatch) {
        let logits = self.storage_as(part.narrow(), Category::Logits, "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: part.tokens, n: part.words, k: part.width },
            part.dtype,
            MatmulLayout::Forward,
            dispatch,
        );
        self.name(&mut names.logits, logits);
        let wide = self.storage_as(part.wide(), Category::Logits, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, part.narrow(), part.wide(), dispatch);
        self.name(&mut names.scaled, wide);
        self.pointwise("aten.mul_", MemoryKind::Elementwise, part.wide() + part.column(), part.wide(), dispatch);
    }

    /// Whether a label is in the part: a mask, and an answer the host waits for.
    fn any_label(&mut self, part: Part, dispatch: Dispatch) {
        let mask = self.storage(part.tokens, "aten.bitwise_and");
        for _ in 0..3 {
            self.pointwise("aten.ge", MemoryKind::Elementwise, 8 * part.tokens, part.tokens, dispatch);
        }
        self.pointwise("aten.any", MemoryKind::Elementwise, part.tokens, 1, dispatch);
        let copy = Work::HostCopy { bytes: Bytes(1), to_host: true };
        self.program.launch(COMPUTE, "aten._local_scalar_dense", copy, dispatch);
        self.program.wait_for_host(COMPUTE);
        self.release(mask);
    }

    /// Forward; keeps hidden state and the logarithms of the sums.
    pub(super) fn vocabulary(&mut self, graph: &Graph, op: &Op, words: u64, frame: &mut Frame) {
        let dispatch = self.settings.forward;
        let parts = Self::parts(graph, op, words);
        let column = parts[0].column();
        let running: Vec<Storage> = (0..4).map(|_| self.storage(column, "aten.full")).collect();
        self.pointwise("aten.full", MemoryKind::Copy, 0, 4 * column, dispatch);
        let mut names = Names::default();
        for part in parts {
            self.scaled_logits(part, &mut names, dispatch);
            let wide = part.wide();
            self.pointwise("aten.amax", MemoryKind::Softmax, wide, column, dispatch);
            let moved = self.storage_as(wide, Category::Logits, "aten.sub");
            self.pointwise("aten.sub", MemoryKind::Elementwise, wide + column, wide, dispatch);
            let exponents = self.storage_as(wide, Category::Logits, "aten.exp");
            self.pointwise("aten.exp", MemoryKind::Elementwise, wide, wide, dispatch);
            self.release(moved);
            self.pointwise("aten.sum", MemoryKind::Softmax, wide, column, dispatch);
            let weighted = self.storage_as(wide, Category::Logits, "aten.mul");
            self.pointwise("aten.mul", MemoryKind::Elementwise, 2 * wide, wide, dispatch);
            self.pointwise("aten.sum", MemoryKind::Softmax, wide, column, dispatch);
            self.release(weighted);
            self.release(exponents);
            // Maximum, difference, exponent; two products and two sums.
            for _ in 0..7 {
                self.pointwise("aten.mul", MemoryKind::Elementwise, 2 * column, column, dispatch);
            }
            self.any_label(part, dispatch);
        }
        let sums = self.storage(column, "aten.log");
        for name in ["aten.log", "aten.add", "aten.sub", "aten.div", "aten.sub"] {
            self.pointwise(name, MemoryKind::Elementwise, 2 * column, column, dispatch);
        }
        for storage in [names.logits, names.scaled].into_iter().flatten().chain(running) {
            self.release(storage);
        }
        let loss = self.storage(4, "aten.mean");
        self.pointwise("aten.mean", MemoryKind::Elementwise, column, 4, dispatch);
        frame.slots[op.outputs[0]] = Some(loss);
        let hidden = frame.slots[op.inputs[0]].expect("an operator reads live values");
        let hidden = self.retain(hidden);
        frame.saved.extend([hidden, sums]);
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Backward: the logits again, part by part, and the gradients of hidden state and weight added up.
    pub(super) fn vocabulary_backward(&mut self, node: Node<'_>, words: u64, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let saved: [Storage; 2] = Self::saved_by(frame, index);
        let dispatch = self.settings.backward;
        let (hidden, table) = (&graph.values[op.inputs[0]], &graph.params[op.params[0]]);
        let (dtype, table) = (hidden.dtype, table.elements() * hidden.dtype.bytes());
        let parts = Self::parts(graph, op, words);
        let column = parts[0].column();
        let broadcast = self.temporary(column, "aten.div");
        self.pointwise("aten.div", MemoryKind::Elementwise, 4, column, dispatch);
        self.release(gradient);
        let of_hidden = self.temporary(hidden.bytes(), "aten.zeros_like");
        let of_weight = self.temporary(table, "aten.zeros_like");
        self.pointwise("aten.zeros_like", MemoryKind::Copy, 0, hidden.bytes() + table, dispatch);
        let category = std::mem::replace(&mut self.category, Category::BackwardTemporary);
        let mut names = Names::default();
        for part in parts {
            let Part { tokens, words, width, .. } = part;
            let (wide, narrow) = (part.wide(), part.narrow());
            self.scaled_logits(part, &mut names, dispatch);
            let moved = self.temporary(wide, "aten.sub");
            self.pointwise("aten.sub", MemoryKind::Elementwise, wide + column, wide, dispatch);
            let exponents = self.temporary(wide, "aten.exp");
            self.pointwise("aten.exp", MemoryKind::Elementwise, wide, wide, dispatch);
            self.release(moved);
            self.name(&mut names.probabilities, exponents);
            let of_logits = self.temporary(wide, "aten.mul");
            self.pointwise("aten.mul", MemoryKind::Elementwise, wide + column, wide, dispatch);
            self.name(&mut names.gradient, of_logits);
            self.any_label(part, dispatch);
            self.pointwise("aten.mul_", MemoryKind::Elementwise, wide + column, wide, dispatch);
            for (shape, layout) in [
                (MatmulShape { m: tokens, n: width, k: words }, MatmulLayout::DataGradient),
                (MatmulShape { m: words, n: width, k: tokens }, MatmulLayout::WeightGradient),
            ] {
                let cast = self.temporary(narrow, "aten._to_copy");
                self.pointwise("aten._to_copy", MemoryKind::Elementwise, wide, narrow, dispatch);
                let bytes = shape.m * width * dtype.bytes();
                let product = self.temporary(bytes, "aten.mm");
                self.matmul("aten.mm", shape, dtype, layout, dispatch);
                self.release(cast);
                self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, dispatch);
                self.release(product);
            }
        }
        self.category = category;
        let Names { logits, scaled, probabilities, gradient } = names;
        for storage in [logits, scaled, probabilities, gradient].into_iter().flatten() {
            self.release(storage);
        }
        self.release(broadcast);
        for storage in saved {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], of_hidden.into());
        let param = frame.params.index(op.params[0]);
        let (weight, dtype) = self.upcast(param, of_weight, dtype);
        self.store_leaf(param, weight, dtype);
    }
}
