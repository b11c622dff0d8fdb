//! Cross-entropy over logits that are split on the vocabulary: `torch.distributed.tensor.parallel.loss_parallel`
//! (`torch/distributed/tensor/parallel/loss.py`, PyTorch 2.15), in eager operators.
//!
//! Of V/t words a rank has, it takes maximum and sum of exponentials and all-reduces both, one number a token; what the
//! label's word contributes comes from the one rank that has it. Five blocks of V/t words a token in fp32 are made in
//! each direction, of which three live together.

use super::frame::{Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, DType, MemoryKind};

/// Bytes of a token's mask, index and number.
const MASK: u64 = 1;
const INDEX: u64 = 8;
const NUMBER: u64 = 4;

impl Eager {
    /// Small operator with one result that is read once more.
    fn small(&mut self, bytes: u64, name: &'static str) -> Storage {
        let storage = self.storage(bytes, name);
        self.pointwise(name, MemoryKind::Elementwise, bytes, bytes, self.settings.forward);
        storage
    }

    /// `torch.where(mask, a, 0)`, whose scalar and mask are made and go.
    fn selected(&mut self, tokens: u64, element: u64) -> Storage {
        let mask = self.small(tokens * MASK, "aten.ne");
        let scalar = self.small(element, "aten.where");
        let chosen = self.small(tokens * element, "aten.where");
        self.release(scalar);
        self.release(mask);
        chosen
    }

    /// Which tokens' words other ranks have, and the others' rows of this rank's part of a table.
    pub(super) fn masked_rows(&mut self, tokens: u64) -> (Storage, Storage) {
        let below = self.small(tokens * MASK, "aten.lt");
        let above = self.small(tokens * MASK, "aten.ge");
        let elsewhere = self.small(tokens * MASK, "aten.__or__");
        self.release(below);
        self.release(above);
        let copy = self.small(tokens * INDEX, "aten.clone");
        let rows = self.small(tokens * INDEX, "aten.sub");
        self.release(copy);
        (elsewhere, rows)
    }

    pub(super) fn parallel_cross_entropy(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.forward);
        let (wide, numbers) = (logits.elements * 4, tokens * NUMBER);
        let category = self.category;
        let block = |this: &mut Self, name, kind, read| {
            let storage = this.storage_as(wide, Category::Logits, name);
            this.pointwise(name, kind, read, wide, dispatch);
            storage
        };
        let reduced = |this: &mut Self, name| {
            let part = this.storage(numbers, name);
            this.pointwise(name, MemoryKind::Softmax, wide, numbers, dispatch);
            part
        };
        let whole = block(self, "aten._to_copy", MemoryKind::Elementwise, logits.bytes());
        let part = reduced(self, "aten.amax");
        let largest = self.all_reduce(part, DType::Fp32, category);
        let shifted = block(self, "aten.sub", MemoryKind::Elementwise, wide);
        let exp = block(self, "aten.exp", MemoryKind::Elementwise, wide);
        let part = reduced(self, "aten.sum");
        self.release(exp);
        let total = self.all_reduce(part, DType::Fp32, category);
        let log = self.small(numbers, "aten.log");
        let log_softmax = block(self, "aten.sub", MemoryKind::Elementwise, wide);
        for storage in [shifted, largest, total, log] {
            self.release(storage);
        }
        let labels = self.selected(tokens, INDEX);
        let (elsewhere, rows) = self.masked_rows(tokens);
        let own = self.storage(numbers, "aten.gather");
        self.pointwise("aten.gather", MemoryKind::Gather, tokens * (INDEX + NUMBER), numbers, dispatch);
        self.release(elsewhere);
        self.retain(own);
        let picked = self.all_reduce(own, DType::Fp32, category);
        let negative = self.small(numbers, "aten.neg");
        let losses = self.selected(tokens, NUMBER);
        self.release(negative);
        let counted = self.small(tokens * MASK, "aten.ne");
        let count = self.small(INDEX, "aten.sum");
        // The mask as integers.
        let integers = self.storage(tokens * INDEX, "aten.sum");
        self.release(integers);
        self.release(counted);
        let weight = self.small(NUMBER, "aten.to");
        self.release(count);
        let sum = self.small(NUMBER, "aten.sum");
        let mean = self.small(NUMBER, "aten.div");
        for storage in [sum, losses, labels, rows, own, picked, whole] {
            self.release(storage);
        }
        frame.slots[op.outputs[0]] = Some(mean);
        if results == Results::Save {
            frame.saved.extend([weight, log_softmax]);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            self.release(weight);
            self.release(log_softmax);
        }
    }

    pub(super) fn parallel_cross_entropy_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let [weight, log_softmax] = Self::saved_by(frame, index);
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.backward);
        let wide = logits.elements * 4;
        let before = std::mem::replace(&mut self.category, Category::BackwardTemporary);
        let mean = self.small(NUMBER, "aten.div");
        self.release(gradient);
        let labels = self.selected(tokens, INDEX);
        let ones = self.temporary(wide, "aten.zeros_like");
        self.pointwise("aten.zeros_like", MemoryKind::Copy, 0, wide, dispatch);
        let (elsewhere, rows) = self.masked_rows(tokens);
        let mask = self.small(tokens * NUMBER, "aten.to");
        let update = self.small(tokens * NUMBER, "aten.sub");
        self.release(mask);
        let every = self.small(tokens * INDEX, "aten.arange");
        let scaled = self.selected(tokens, NUMBER);
        self.release(mean);
        let exp = self.pointwise_gradient("aten.exp", wide, wide);
        let sum = self.pointwise_gradient("aten.add", wide, 2 * wide);
        self.release(exp);
        let product = self.pointwise_gradient("aten.mul", wide, wide);
        for storage in [sum, scaled, labels, ones, elsewhere, rows, update, every, weight, log_softmax] {
            self.release(storage);
        }
        let result = self.pointwise_gradient("aten._to_copy", logits.bytes(), wide);
        self.release(product);
        self.category = before;
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
