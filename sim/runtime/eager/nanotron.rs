//! Rules of nanotron's own operators, forward and backward (huggingface/nanotron@c2528430).
//!
//! A linear whose parts are gathered multiplies the rank's own part meanwhile, then what lies before and after it: three
//! matmuls on ranks in the middle, whose program stands for all. Gathered parts lie in a buffer that all linears share
//! (`MemoryBuffer`).

use super::frame::{Node, Results};
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::nanotron::NanotronOp;
use crate::program::{Category, Collective, DType, MatmulLayout, MemoryKind};

/// Bytes of an index and of a number.
const INDEX: u64 = 8;
const NUMBER: u64 = 4;

/// A linear's sizes: tokens of all ranks, of its own, columns and rows of its weight.
struct Linear {
    tokens: u64,
    part: u64,
    inputs: u64,
    outputs: u64,
    ranks: u64,
    dtype: DType,
}

impl Linear {
    fn of(graph: &Graph, op: &Op, inputs: u64, outputs: u64) -> Linear {
        let ranks = graph.dims.tensor.ranks;
        let (tokens, dtype) = (graph.dims.tokens(), graph.values[op.inputs[0]].dtype);
        Linear { tokens, part: tokens / ranks, inputs, outputs, ranks, dtype }
    }

    /// Rows of the parts before and after a middle rank's own.
    fn others(&self) -> impl Iterator<Item = u64> + use<> {
        let before = (self.ranks - 1) / 2;
        let part = self.part;
        [before, self.ranks - 1 - before].into_iter().filter(|&ranks| ranks > 0).map(move |ranks| ranks * part)
    }

    fn bytes(&self, rows: u64, columns: u64) -> u64 {
        rows * columns * self.dtype.bytes()
    }
}

impl Eager {
    pub(super) fn nanotron(&mut self, graph: &Graph, op: &Op, kind: NanotronOp, frame: &mut Frame, results: Results) {
        match kind {
            NanotronOp::Column { inputs, outputs, regather } => {
                self.column(graph, op, Linear::of(graph, op, inputs, outputs), regather, frame, results);
            }
            NanotronOp::Row { inputs, outputs } => {
                self.row(graph, op, Linear::of(graph, op, inputs, outputs), frame, results)
            }
            NanotronOp::Heads => self.heads_first(graph, op, frame, results),
            NanotronOp::Transpose => self.sequence_first(graph, op, frame, results),
            NanotronOp::Loss => self.sharded_loss(graph, op, frame, results),
        }
    }

    pub(super) fn nanotron_backward(&mut self, node: Node<'_>, kind: NanotronOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, .. } = node;
        match kind {
            NanotronOp::Column { inputs, outputs, regather } => {
                let linear = Linear::of(graph, op, inputs, outputs);
                self.column_backward(node, linear, regather, frame, gradient);
            }
            NanotronOp::Row { inputs, outputs } => {
                self.row_backward(node, Linear::of(graph, op, inputs, outputs), frame, gradient);
            }
            NanotronOp::Heads => self.heads_first_backward(graph, op, frame, gradient),
            NanotronOp::Transpose => self.sequence_first_backward(graph, op, frame, gradient),
            NanotronOp::Loss => self.sharded_loss_backward(node, frame, gradient),
        }
    }

    fn column(&mut self, graph: &Graph, op: &Op, linear: Linear, regather: bool, frame: &mut Frame, results: Results) {
        let dispatch = self.settings.forward;
        let whole = linear.bytes(linear.tokens, linear.inputs);
        let mut gathered = None;
        if linear.ranks > 1 {
            gathered = (!regather).then(|| self.storage(whole, "all_gather_into_tensor"));
            self.begin_exchange(Collective::AllGather, whole, linear.dtype);
        }
        let out = self.storage(graph.values[op.outputs[0]].bytes(), "aten.mm");
        let product = |this: &mut Self, rows| {
            let shape = MatmulShape { m: rows, n: linear.outputs, k: linear.inputs };
            this.matmul("aten.mm", shape, linear.dtype, MatmulLayout::Forward, dispatch);
        };
        product(self, linear.part);
        if linear.ranks > 1 {
            self.end_exchange();
        }
        for rows in linear.others() {
            product(self, rows);
        }
        frame.slots[op.outputs[0]] = Some(out);
        let kept = gathered.unwrap_or_else(|| self.retain(Self::value(frame, op.inputs[0])));
        self.keep(frame, results, &[kept]);
    }

    fn column_backward(
        &mut self,
        node: Node<'_>,
        linear: Linear,
        regather: bool,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { op, index, .. } = node;
        let (dispatch, dtype) = (self.settings.backward, linear.dtype);
        let several = linear.ranks > 1;
        let whole_bytes = linear.bytes(linear.tokens, linear.inputs);
        if several && regather {
            self.begin_exchange(Collective::AllGather, whole_bytes, dtype);
        }
        let whole = self.temporary(whole_bytes, "aten.mm");
        let shape = MatmulShape { m: linear.tokens, n: linear.inputs, k: linear.outputs };
        self.matmul("aten.mm", shape, dtype, MatmulLayout::DataGradient, dispatch);
        let mut part = None;
        if several {
            // The gathering has been issued before on the same communicator, so this follows it.
            part = Some(self.temporary(linear.bytes(linear.part, linear.inputs), "reduce_scatter_tensor"));
            self.end_exchange();
            self.begin_exchange(Collective::ReduceScatter, whole_bytes, dtype);
        }
        let weight = self.weight_of(&linear, dispatch);
        if several {
            self.end_exchange();
        }
        let result = match part {
            Some(part) => {
                self.release(whole);
                part
            }
            None => whole,
        };
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        self.store_leaf(frame.params.index(op.params[0]), weight, dtype);
    }

    fn weight_of(&mut self, linear: &Linear, dispatch: crate::program::Dispatch) -> Storage {
        let weight = self.temporary(linear.bytes(linear.outputs, linear.inputs), "aten.mm");
        let shape = MatmulShape { m: linear.outputs, n: linear.inputs, k: linear.tokens };
        self.matmul("aten.mm", shape, linear.dtype, MatmulLayout::WeightGradient, dispatch);
        weight
    }

    fn row(&mut self, graph: &Graph, op: &Op, linear: Linear, frame: &mut Frame, results: Results) {
        let dispatch = self.settings.forward;
        let bytes = linear.bytes(linear.tokens, linear.outputs);
        let mut out = self.storage(bytes, "aten.mm");
        let shape = MatmulShape { m: linear.tokens, n: linear.outputs, k: linear.inputs };
        self.matmul("aten.mm", shape, linear.dtype, MatmulLayout::Forward, dispatch);
        if linear.ranks > 1 {
            let part = self.storage(graph.values[op.outputs[0]].bytes(), "reduce_scatter_tensor");
            self.exchange_now(Collective::ReduceScatter, bytes, linear.dtype);
            self.release(out);
            out = part;
        }
        frame.slots[op.outputs[0]] = Some(out);
        let input = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[input]);
    }

    fn row_backward(&mut self, node: Node<'_>, linear: Linear, frame: &mut Frame, gradient: Storage) {
        let Node { op, index, .. } = node;
        let (dispatch, dtype) = (self.settings.backward, linear.dtype);
        if linear.ranks > 1 {
            self.begin_exchange(Collective::AllGather, linear.bytes(linear.tokens, linear.outputs), dtype);
        }
        let result = self.temporary(linear.bytes(linear.tokens, linear.inputs), "aten.mm");
        let product = |this: &mut Self, rows| {
            let shape = MatmulShape { m: rows, n: linear.inputs, k: linear.outputs };
            this.matmul("aten.mm", shape, dtype, MatmulLayout::DataGradient, dispatch);
        };
        product(self, linear.part);
        if linear.ranks > 1 {
            self.end_exchange();
        }
        for rows in linear.others() {
            product(self, rows);
        }
        let weight = self.weight_of(&linear, dispatch);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        self.store_leaf(frame.params.index(op.params[0]), weight, dtype);
    }

    /// All three batch first; keys and values laid into one block and that in another order; queries turned beside
    /// themselves, keys in place. With shared key-value heads the three are copied one by one.
    fn heads_first(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        const TURN: &str = "flash_attn.rotary_kernel";
        let [query, key, value] = [0, 1, 2].map(|at| graph.values[op.outputs[at]].bytes());
        let dispatch = self.settings.forward;
        let first = self.copy_of("aten.clone", query + key + value, false);
        let both = self.copy_of("aten.cat", key + value, false);
        // One block in truth, of which attention reads both halves where they lie.
        let pairs = [key, value].map(|bytes| self.copy_of("aten.clone", bytes, false));
        self.release(both);
        let turned = self.made(TURN, query, query, dispatch);
        self.pointwise(TURN, MemoryKind::Elementwise, key, key, dispatch);
        self.release(first);
        for (&value, storage) in op.outputs.iter().zip([turned, pairs[0], pairs[1]]) {
            frame.slots[value] = Some(storage);
        }
        self.keep(frame, results, &[]);
    }

    /// Their gradients the same way back: joined, turned, stacked, put in order.
    fn heads_first_backward(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, gradient: Storage) {
        const TURN: &str = "flash_attn.rotary_kernel";
        let [query, key, value] = [0, 1, 2].map(|at| graph.values[op.outputs[at]].bytes());
        let dispatch = self.settings.backward;
        let both = self.copy_of("aten.cat", key + value, true);
        for &part in &op.outputs[1..] {
            if let Some(Gradient { storage, .. }) = frame.gradients[part].take() {
                self.release(storage);
            }
        }
        let turned = self.pointwise_gradient(TURN, query, query);
        self.release(gradient);
        self.pointwise(TURN, MemoryKind::Elementwise, key, key, dispatch);
        let stacked = self.copy_of("aten.stack", query + key + value, true);
        self.release(turned);
        self.release(both);
        let whole = self.copy_of("aten.clone", query + key + value, true);
        self.release(stacked);
        self.accumulate(frame, op.inputs[0], whole.into());
    }

    /// With one sequence the order is the same.
    fn sequence_first(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let bytes = graph.values[op.outputs[0]].bytes();
        let out = if graph.dims.b > 1 {
            self.copy_of("aten.clone", bytes, false)
        } else {
            self.retain(Self::value(frame, op.inputs[0]))
        };
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &[]);
    }

    fn sequence_first_backward(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, mut gradient: Storage) {
        if graph.dims.b > 1 {
            let copy = self.copy_of("aten.clone", graph.values[op.inputs[0]].bytes(), true);
            self.release(gradient);
            gradient = copy;
        }
        self.accumulate(frame, op.inputs[0], gradient.into());
    }

    /// Losses of all tokens. The logits less their maximum are a block of their own, which becomes their exponentials, the
    /// softmax and the gradient in turn.
    fn sharded_loss(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.forward);
        let (wide, numbers) = (logits.bytes(), tokens * NUMBER);
        let largest = self.made("aten.max", numbers, wide, dispatch);
        self.exchange_now(Collective::AllReduce, numbers, DType::Fp32);
        let shifted = self.storage_as(wide, Category::Logits, "aten.sub");
        self.pointwise("aten.sub", MemoryKind::Elementwise, wide, wide, dispatch);
        self.release(largest);
        let (elsewhere, rows) = self.masked_rows(tokens);
        let picked = self.made("aten.index", numbers, numbers + tokens * INDEX, dispatch);
        self.exchange_now(Collective::AllReduce, numbers, DType::Fp32);
        self.pointwise("aten.exp", MemoryKind::Elementwise, wide, wide, dispatch);
        let total = self.storage(numbers, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Softmax, wide, numbers, dispatch);
        self.exchange_now(Collective::AllReduce, numbers, DType::Fp32);
        let log = self.made("aten.log", numbers, numbers, dispatch);
        let losses = self.made("aten.sub", numbers, 2 * numbers, dispatch);
        self.pointwise("aten.div_", MemoryKind::Elementwise, wide, wide, dispatch);
        for storage in [log, total, picked] {
            self.release(storage);
        }
        frame.slots[op.outputs[0]] = Some(losses);
        self.keep(frame, results, &[shifted, elsewhere, rows]);
    }

    fn sharded_loss_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.backward);
        let numbers = tokens * NUMBER;
        let update = self.pointwise_gradient("aten.rsub", numbers, tokens);
        self.pointwise("aten.index_put_", MemoryKind::Scatter, 2 * numbers, numbers, dispatch);
        self.pointwise("aten.mul_", MemoryKind::Elementwise, logits.bytes(), logits.bytes(), dispatch);
        let [result, elsewhere, rows] = Self::saved_by(frame, index);
        for storage in [update, gradient, elsewhere, rows] {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
