//! Cross-entropy over logits split on the vocabulary (`megatron/core/tensor_parallel/cross_entropy.py`): one block of
//! fp32, which holds first the logits, then their exponentials, then the softmax, then the gradient; three all-reduces of
//! one number a token. Then the masked mean, as `pretrain_gpt.py` and `core/pipeline_parallel/schedules.py` take it.

mod engine;

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, Collective, DType, Dispatch, MemoryKind};

/// Bytes of an index and of a number.
const INDEX: u64 = 8;
const NUMBER: u64 = 4;

impl Eager {
    fn tiny(&mut self, bytes: u64, name: &'static str) -> Storage {
        let dispatch =
            if self.category == Category::BackwardTemporary { self.settings.backward } else { self.settings.forward };
        self.made(name, bytes, bytes, dispatch)
    }

    /// Losses of all tokens, `[B, S]` in fp32.
    pub(super) fn vocabulary_loss(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.forward);
        let wide = logits.elements * DType::Fp32.bytes();
        let transposes = graph.dims.b > 1;
        let labels = transposes.then(|| self.tiny(tokens * INDEX, "aten.clone"));
        let exp = self.storage_as(wide, Category::Logits, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, logits.bytes(), wide, dispatch);
        let largest = self.storage(tokens * NUMBER, "aten.max");
        let at = self.storage(tokens * INDEX, "aten.max");
        self.pointwise("aten.max", MemoryKind::Softmax, wide, tokens * (NUMBER + INDEX), dispatch);
        self.release(at);
        self.exchange_now(Collective::AllReduce, tokens * NUMBER, DType::Fp32);
        self.pointwise("aten.sub_", MemoryKind::Elementwise, wide, wide, dispatch);
        let (elsewhere, rows) = self.masked_rows(tokens);
        let every = self.tiny(tokens * INDEX, "aten.arange");
        let picked = self.tiny(tokens * NUMBER, "aten.index");
        let own = self.tiny(tokens * NUMBER, "aten.clone");
        self.release(picked);
        self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, tokens * NUMBER, tokens * NUMBER, dispatch);
        self.pointwise("aten.exp_", MemoryKind::Elementwise, wide, wide, dispatch);
        let total = self.storage(tokens * NUMBER, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Softmax, wide, tokens * NUMBER, dispatch);
        self.release(every);
        for _ in 0..2 {
            self.exchange_now(Collective::AllReduce, tokens * NUMBER, DType::Fp32);
        }
        let log = self.tiny(tokens * NUMBER, "aten.log");
        let mut losses = self.tiny(tokens * NUMBER, "aten.sub");
        self.release(log);
        self.pointwise("aten.div_", MemoryKind::Elementwise, wide, wide, dispatch);
        for storage in [largest, own, total] {
            self.release(storage);
        }
        if let Some(labels) = labels {
            let copy = self.tiny(tokens * NUMBER, "aten.clone");
            self.release(losses);
            self.release(labels);
            losses = copy;
        }
        frame.slots[op.outputs[0]] = Some(losses);
        self.keep(frame, results, &[exp, elsewhere, rows]);
    }

    pub(super) fn vocabulary_loss_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.backward);
        let wide = logits.elements * DType::Fp32.bytes();
        let before = std::mem::replace(&mut self.category, Category::BackwardTemporary);
        let every = self.tiny(tokens * INDEX, "aten.arange");
        let mask = self.tiny(tokens * NUMBER, "aten._to_copy");
        let update = self.tiny(tokens * NUMBER, "aten.rsub");
        self.release(mask);
        let picked = self.tiny(tokens * NUMBER, "aten.index");
        self.pointwise("aten.index_put_", MemoryKind::Scatter, tokens * NUMBER, tokens * NUMBER, dispatch);
        self.release(picked);
        self.pointwise("aten.mul_", MemoryKind::Elementwise, wide, wide, dispatch);
        for storage in [every, update, gradient] {
            self.release(storage);
        }
        let result = self.pointwise_gradient("aten._to_copy", logits.bytes(), wide);
        for storage in Self::saved_by::<3>(frame, index) {
            self.release(storage);
        }
        self.category = before;
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// The same as four functions that inductor compiles (`fusions/fused_cross_entropy.py`): two all-reduces. What is
    /// changed in place is first made beside itself.
    pub(super) fn fused_vocabulary_loss(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        const NAME: &str = "triton_cross_entropy";
        let (logits, tokens) = (&graph.values[op.inputs[0]], graph.dims.tokens());
        let (wide, numbers) = (logits.elements * DType::Fp32.bytes(), tokens * NUMBER);
        let labels = (graph.dims.b > 1).then(|| self.tiny(tokens * INDEX, "aten.clone"));
        let compiled = |this: &mut Self, kind, read, written| {
            this.pointwise(NAME, kind, read, written, Dispatch::Compiled);
        };
        let exp = self.storage_as(wide, Category::Logits, NAME);
        let largest = self.storage(numbers, NAME);
        compiled(self, MemoryKind::Softmax, logits.bytes(), wide + numbers);
        self.exchange_now(Collective::AllReduce, numbers, DType::Fp32);
        let elsewhere = self.storage(tokens, NAME);
        let rows = self.storage(tokens * INDEX, NAME);
        let sums = self.storage(2 * numbers, NAME);
        let beside = self.storage_as(wide, Category::Logits, NAME);
        compiled(self, MemoryKind::Softmax, wide, wide + 2 * numbers);
        compiled(self, MemoryKind::Elementwise, wide, wide);
        self.release(beside);
        self.exchange_now(Collective::AllReduce, 2 * numbers, DType::Fp32);
        let mut losses = self.storage(numbers, NAME);
        compiled(self, MemoryKind::Elementwise, wide, wide);
        self.release(largest);
        self.release(sums);
        if let Some(labels) = labels {
            let copy = self.tiny(numbers, "aten.clone");
            self.release(losses);
            self.release(labels);
            losses = copy;
        }
        frame.slots[op.outputs[0]] = Some(losses);
        self.keep(frame, results, &[exp, elsewhere, rows]);
    }

    pub(super) fn fused_vocabulary_loss_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        const NAME: &str = "triton_cross_entropy_backward";
        let logits = &graph.values[op.inputs[0]];
        let wide = logits.elements * DType::Fp32.bytes();
        let beside = self.temporary(wide, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, wide, wide, Dispatch::Compiled);
        let result = self.temporary(logits.bytes(), NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, wide, logits.bytes(), Dispatch::Compiled);
        self.release(beside);
        self.release(gradient);
        for storage in Self::saved_by::<3>(frame, index) {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// The masked mean; also what is reported and counted ([`MegatronOp::MaskedMean`]).
    pub(super) fn masked_mean(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let tokens = graph.dims.tokens();
        let product = self.tiny(tokens * NUMBER, "aten.mul");
        let total = self.tiny(NUMBER, "aten.sum");
        self.release(product);
        let sum = self.tiny(NUMBER, "aten.sum");
        let copy = self.tiny(NUMBER, "aten.clone");
        self.release(sum);
        let count = self.tiny(NUMBER, "aten._to_copy");
        self.release(copy);
        let copy = self.tiny(NUMBER, "aten.clone");
        let report = self.tiny(2 * NUMBER, "aten.cat");
        self.release(copy);
        let divisor = self.tiny(NUMBER, "aten.clamp");
        for name in ["aten.div_", "aten.div_"] {
            self.pointwise(name, MemoryKind::Elementwise, NUMBER, NUMBER, self.settings.forward);
        }
        for (&value, storage) in op.outputs.iter().zip([total, count, report]) {
            frame.slots[value] = Some(storage);
        }
        let mask = self.retain(Self::value(frame, op.inputs[1]));
        self.keep(frame, results, &[divisor, mask]);
    }

    pub(super) fn masked_mean_backward(&mut self, node: Node<'_>, frame: &mut Frame, mut gradient: Storage) {
        let Node { graph, op, index } = node;
        let before = std::mem::replace(&mut self.category, Category::BackwardTemporary);
        // The loss scale, the number of micro-batches, the number of tokens, and the sum.
        for name in ["aten.mul", "aten.div", "aten.div", "aten.div"] {
            let next = self.tiny(NUMBER, name);
            self.release(gradient);
            gradient = next;
        }
        let [divisor, mask] = Self::saved_by(frame, index);
        self.release(divisor);
        let losses = self.tiny(graph.dims.tokens() * NUMBER, "aten.mul");
        self.release(gradient);
        self.release(mask);
        self.category = before;
        self.accumulate(frame, op.inputs[0], losses.into());
    }
}
