//! Rules of InternLM's own operators, forward and backward (InternLM/InternEvo@e1cefaef, v0.1.0; flash-attention 1.0.5).
//!
//! Rotary embeddings and the gradient of the logits take the place of what they are computed from. Norms run in fp32 and,
//! unless the whole block does, are recomputed in backward. Assumed: Apex's norm is one kernel each way.

use super::frame::{Node, Results};
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::internlm::InternLmOp;
use crate::program::{AttentionShape, Category, Collective, DType, MemoryKind, Pass, Work};
use crate::units::Bytes;

/// Bytes of an index and of a number.
const INDEX: u64 = 8;
const NUMBER: u64 = 4;

/// A norm in fp32.
#[derive(Clone, Copy)]
struct WideNorm {
    /// The residual is added first, and is a result as well.
    adds: bool,
    /// It is recomputed in backward.
    recompute: bool,
}

/// What a norm makes: the sum it is of, if it adds, its input in fp32, the normed, a number for each row.
struct Normed {
    sum: Option<Storage>,
    wide: Storage,
    out: Storage,
    rows: Storage,
}

impl Eager {
    pub(super) fn internlm(&mut self, graph: &Graph, op: &Op, kind: InternLmOp, frame: &mut Frame, results: Results) {
        match kind {
            InternLmOp::Embed => self.embed_columns(graph, op, frame, results),
            InternLmOp::Norm { adds, recompute } => {
                self.wide_norm(graph, op, WideNorm { adds, recompute }, frame, results)
            }
            InternLmOp::Rotate => self.rotate_in_place(graph, op, frame, results),
            InternLmOp::Flash => self.packed_flash(graph, op, frame, results),
            InternLmOp::Loss => self.in_place_loss(graph, op, frame, results),
        }
    }

    pub(super) fn internlm_backward(&mut self, node: Node<'_>, kind: InternLmOp, frame: &mut Frame, gradient: Storage) {
        match kind {
            InternLmOp::Embed => self.embed_columns_backward(node, frame, gradient),
            InternLmOp::Norm { adds, recompute } => {
                self.wide_norm_backward(node, WideNorm { adds, recompute }, frame, gradient);
            }
            InternLmOp::Rotate => self.rotate_in_place_backward(node, frame, gradient),
            InternLmOp::Flash => self.packed_flash_backward(node, frame, gradient),
            InternLmOp::Loss => self.in_place_loss_backward(node, frame, gradient),
        }
    }

    /// Each rank has some columns of the table; their rows are gathered into storages of their own and laid side by side.
    fn embed_columns(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (value, ranks, dispatch) = (&graph.values[op.outputs[0]], graph.dims.tensor.ranks, self.settings.forward);
        let (whole, tokens) = (value.bytes(), graph.dims.tokens());
        let part = whole / ranks;
        let mut rows = self.storage(part, "aten.embedding");
        self.pointwise("aten.embedding", MemoryKind::Gather, part + tokens * INDEX, part, dispatch);
        if ranks > 1 {
            let others = self.storage(whole - part, "all_gather");
            self.exchange_now(Collective::AllGather, whole, value.dtype);
            let side_by_side = self.storage(whole, "aten.cat");
            self.pointwise("aten.cat", MemoryKind::Copy, whole, whole, dispatch);
            self.release(others);
            self.release(rows);
            rows = side_by_side;
        }
        frame.slots[op.outputs[0]] = Some(rows);
        let tokens = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[tokens]);
    }

    fn embed_columns_backward(&mut self, node: Node<'_>, frame: &mut Frame, mut gradient: Storage) {
        let Node { graph, op, index } = node;
        let (value, ranks) = (&graph.values[op.outputs[0]], graph.dims.tensor.ranks);
        let part = value.bytes() / ranks;
        if ranks > 1 {
            let own = self.temporary(part, "aten.clone");
            self.pointwise("aten.clone", MemoryKind::Copy, part, part, self.settings.backward);
            self.release(gradient);
            gradient = own;
        }
        let table = self.dense_gradient(graph.dims.tokens(), &graph.params[op.params[0]], value.dtype, part);
        self.release(gradient);
        let [tokens] = Self::saved_by(frame, index);
        self.release(tokens);
        self.store_leaf(frame.params.index(op.params[0]), table, value.dtype);
    }

    /// The kernels of a norm.
    fn run_norm(&mut self, graph: &Graph, op: &Op, adds: bool) -> Normed {
        let (value, dispatch) = (&graph.values[op.inputs[0]], self.settings.forward);
        let (bytes, wide) = (value.bytes(), value.elements * DType::Fp32.bytes());
        let sum = adds.then(|| self.made("aten.add", bytes, 2 * bytes, dispatch));
        let cast = self.made("aten._to_copy", wide, bytes, dispatch);
        let out = self.storage(bytes, "apex.rms_norm");
        let rows = self.storage(graph.dims.tokens() * NUMBER, "apex.rms_norm");
        self.pointwise("apex.rms_norm", MemoryKind::ApexNorm, wide, bytes, dispatch);
        Normed { sum, wide: cast, out, rows }
    }

    fn wide_norm(&mut self, graph: &Graph, op: &Op, norm: WideNorm, frame: &mut Frame, results: Results) {
        let Normed { sum, wide, out, rows } = self.run_norm(graph, op, norm.adds);
        frame.slots[op.outputs[0]] = Some(out);
        if let (Some(sum), Some(&value)) = (sum, op.outputs.get(1)) {
            frame.slots[value] = Some(sum);
        }
        if norm.recompute {
            self.release(rows);
            self.release(wide);
            let held: Vec<Storage> = op.inputs.iter().map(|&input| Self::value(frame, input)).collect();
            let held: Vec<Storage> = held.into_iter().map(|storage| self.retain(storage)).collect();
            self.keep(frame, results, &held);
        } else {
            self.keep(frame, results, &[wide, rows]);
        }
    }

    fn wide_norm_backward(&mut self, node: Node<'_>, norm: WideNorm, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        const NAME: &str = "apex.rms_norm_backward";
        let value = &graph.values[op.inputs[0]];
        let (bytes, width) = (value.bytes(), graph.params[op.params[0]].elements());
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].to_vec();
        let mut held = vec![];
        if norm.recompute {
            let before = (self.program.set_pass(Pass::Recompute), self.category);
            self.category = Category::Recompute;
            let Normed { sum, wide, out, rows } = self.run_norm(graph, op, norm.adds);
            self.program.set_pass(before.0);
            self.category = before.1;
            held.extend([wide, rows, out].into_iter().chain(sum));
        }
        let wide_bytes = value.elements * DType::Fp32.bytes();
        let wide = self.temporary(wide_bytes, NAME);
        let weight = self.temporary(width * value.dtype.bytes(), NAME);
        self.pointwise(NAME, MemoryKind::ApexNormBackward, bytes + wide_bytes, wide_bytes, self.settings.backward);
        self.release(gradient);
        let mut result = self.pointwise_gradient("aten._to_copy", bytes, wide_bytes);
        self.release(wide);
        self.store_leaf(frame.params.index(op.params[0]), weight, value.dtype);
        // The sum has a second reader, the residual of what follows.
        if let Some(other) = op.outputs.get(1).and_then(|&sum| frame.gradients[sum].take()) {
            let total = self.pointwise_gradient("aten.add", bytes, 2 * bytes);
            self.release(result);
            self.release(other.storage);
            result = total;
        }
        for storage in held.into_iter().chain(saved) {
            self.release(storage);
        }
        for &input in &op.inputs[1..] {
            let shared = self.retain(result);
            self.accumulate(frame, input, shared.into());
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Two kernels, on queries and on keys.
    fn turn(&mut self, graph: &Graph, op: &Op) {
        let bytes = graph.values[op.inputs[0]].bytes() / 3;
        let dispatch =
            if self.program.pass() == Pass::Backward { self.settings.backward } else { self.settings.forward };
        for _ in 0..2 {
            self.pointwise("rotary_emb.apply_rotary", MemoryKind::Elementwise, bytes, bytes, dispatch);
        }
    }

    fn rotate_in_place(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (d, dispatch) = (graph.dims, self.settings.forward);
        // `indexes.max().item()`, in every block.
        let most = self.made("aten.max", INDEX, d.tokens() * INDEX, dispatch);
        self.read_back(INDEX);
        self.release(most);
        let table = d.tokens() * d.h / 2 * graph.values[op.inputs[0]].dtype.bytes();
        let [cosine, sine] = [(); 2].map(|()| self.made("aten.index", table, table + d.tokens() * INDEX, dispatch));
        self.turn(graph, op);
        frame.slots[op.outputs[0]] = Some(self.retain(Self::value(frame, op.inputs[0])));
        self.keep(frame, results, &[cosine, sine]);
    }

    fn rotate_in_place_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        self.turn(graph, op);
        for storage in Self::saved_by::<2>(frame, index) {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], gradient.into());
    }

    fn packed_work(graph: &Graph, op: &Op, backward: bool) -> Work {
        let d = graph.dims;
        let (batch, heads, head_dim) = (d.b, d.n, d.h);
        let shape = AttentionShape {
            batch,
            heads,
            kv_heads: d.k,
            queries: d.s,
            keys: d.s,
            head_dim,
            causal: true,
            window: None,
            squares: None,
        };
        Work::Attention { shape, dtype: graph.values[op.inputs[0]].dtype, backward }
    }

    /// The context and its log-sum-exps; sums over parts of the keys in fp32 meanwhile.
    fn packed_flash(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        const NAME: &str = "flash_attn_cuda.fwd";
        let (d, value) = (graph.dims, &graph.values[op.outputs[0]]);
        let out = self.storage(value.bytes(), NAME);
        let sums = self.storage(d.b * d.n * d.s.next_multiple_of(16) * NUMBER, NAME);
        let parts = self.storage(value.elements * NUMBER, NAME);
        self.launch(NAME, Self::packed_work(graph, op, false), self.settings.forward);
        self.release(parts);
        frame.slots[op.outputs[0]] = Some(out);
        let saved = [Self::value(frame, op.inputs[0]), out].map(|storage| self.retain(storage));
        self.keep(frame, results, &[saved[0], saved[1], sums]);
    }

    /// The gradient of the whole mixed product.
    fn packed_flash_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        const NAME: &str = "flash_attn_cuda.bwd";
        let (d, value) = (graph.dims, &graph.values[op.outputs[0]]);
        let result = self.temporary(graph.values[op.inputs[0]].bytes(), NAME);
        let sums = self.temporary(d.b * d.n * d.s.next_multiple_of(16) * NUMBER, NAME);
        let parts = self.temporary(value.elements * NUMBER, NAME);
        self.launch(NAME, Self::packed_work(graph, op, true), self.settings.backward);
        for storage in [parts, sums, gradient].into_iter().chain(Self::saved_by::<3>(frame, index)) {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// The mean loss; the logits, which the schedule's variable names until the next; the sum over micro-batches.
    fn in_place_loss(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (logits, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.forward);
        let losses = self.storage(tokens * NUMBER, "xentropy_cuda_lib.forward");
        let mut sums = self.storage(tokens * NUMBER, "xentropy_cuda_lib.forward");
        let read = logits.bytes() + tokens * INDEX;
        self.pointwise("xentropy_cuda_lib.forward", MemoryKind::Softmax, read, 2 * tokens * NUMBER, dispatch);
        let ranks = graph.dims.tensor.ranks;
        if ranks > 1 {
            let all = self.storage(ranks * tokens * NUMBER, "all_gather_into_tensor");
            self.exchange_now(Collective::AllGather, ranks * tokens * NUMBER, DType::Fp32);
            self.exchange_now(Collective::AllReduce, tokens * NUMBER, DType::Fp32);
            self.release(sums);
            sums = self.made("aten.logsumexp", tokens * NUMBER, ranks * tokens * NUMBER, dispatch);
            self.release(all);
            self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * tokens * NUMBER, tokens * NUMBER, dispatch);
        }
        self.mask_ignored(tokens);
        let total = self.made("aten.sum", NUMBER, tokens * NUMBER, dispatch);
        let count = self.count_targets(tokens);
        let mean = self.made("aten.div", NUMBER, NUMBER + INDEX, dispatch);
        self.release(total);
        self.release(losses);
        // Divided by the number of micro-batches, added to the loss of those before, times the loss scale.
        self.pointwise("aten.div_", MemoryKind::Elementwise, NUMBER, NUMBER, dispatch);
        let sum = self.made("aten.add", NUMBER, 2 * NUMBER, dispatch);
        let kept = [(); 2].map(|()| self.retain(Self::value(frame, op.inputs[0])));
        for (&value, storage) in op.outputs.iter().zip([mean, kept[0], sum]) {
            frame.slots[value] = Some(storage);
        }
        self.keep(frame, results, &[kept[1], sums, count]);
    }

    fn in_place_loss_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (logits, tokens) = (&graph.values[op.inputs[0]], graph.dims.tokens());
        let [result, sums, count] = Self::saved_by(frame, index);
        let quotient = self.pointwise_gradient("aten.div", NUMBER, 3 * NUMBER);
        let broadcast = self.pointwise_gradient("aten.clone", tokens * NUMBER, NUMBER);
        self.mask_ignored(tokens);
        let read = logits.bytes() + 4 * tokens * NUMBER;
        let dispatch = self.settings.backward;
        self.pointwise("xentropy_cuda_lib.backward", MemoryKind::Softmax, read, logits.bytes(), dispatch);
        for storage in [gradient, broadcast, quotient, sums, count] {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// The host waits for a number of so many bytes.
    fn read_back(&mut self, bytes: u64) {
        let copy = Work::HostCopy { bytes: Bytes(bytes), to_host: true };
        self.launch("aten._local_scalar_dense", copy, self.settings.forward);
        self.program.wait_for_host(COMPUTE);
    }
}
