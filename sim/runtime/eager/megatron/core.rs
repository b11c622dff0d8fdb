//! The unfused core of attention (`megatron/core/transformer/dot_product_attention.py`): scores by a batched matmul, a
//! scaled and masked softmax, dropout, and a batched matmul with the values; `b·n` matrices of S·S numbers each.
//!
//! Kept for backward: queries, keys, values, the softmax, the dropout's mask and what it leaves. Recomputed in backward
//! (`CheckpointFunction`, `core/tensor_parallel/random.py`), only queries, keys and values are.

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::MegatronOp;
use crate::program::{Category, DType, Grouping, MatmulLayout, MemoryKind, Pass, Work};

/// What a GPU reads of its memory at least \[B\].
const SECTOR: u64 = 32;

/// Sizes of the core.
#[derive(Clone, Copy)]
struct Sizes {
    /// Matrices of scores.
    matrices: u64,
    seq: u64,
    head: u64,
    /// Scores of all matrices.
    scores: u64,
    /// Bytes of queries, and of the context.
    queries: u64,
    /// Bytes of keys, and of values, before they are copied to every query head.
    keys: u64,
    dtype: DType,
    fused_softmax: bool,
    dropout: bool,
    biased: bool,
}

impl Sizes {
    fn of(graph: &Graph, op: &Op, kind: MegatronOp) -> Sizes {
        let MegatronOp::Core { fused_softmax, dropout, biased, .. } = kind else { unreachable!("called for cores") };
        let d = graph.dims;
        let query = &graph.values[op.inputs[0]];
        let dtype = query.dtype;
        let bytes = |heads: u64| d.b * d.s * heads * d.h * dtype.bytes();
        Sizes {
            matrices: d.b * d.n,
            seq: d.s,
            head: d.h,
            scores: d.b * d.n * d.s * d.s,
            queries: bytes(d.n),
            keys: bytes(d.k),
            dtype,
            fused_softmax,
            dropout,
            biased,
        }
    }

    fn score_bytes(&self) -> u64 {
        self.scores * self.dtype.bytes()
    }

    /// Bytes of the scores that no mask hides, in whole sectors of a row: the fused kernel reads no others, and writes zeros
    /// there (`scaled_upper_triang_masked_softmax.h`).
    fn seen_bytes(&self) -> u64 {
        let sector = SECTOR / self.dtype.bytes();
        (self.matrices * self.seq * (self.seq + sector) / 2 * self.dtype.bytes()).min(self.score_bytes())
    }

    /// Whether a group of query heads shares keys and values, which are then copied to each.
    fn grouped(&self) -> bool {
        self.keys < self.queries
    }
}

/// What the core keeps for its backward.
#[derive(Clone, Copy)]
struct Kept {
    query: Storage,
    key: Storage,
    value: Storage,
    /// The softmax as it was written.
    softmax: Storage,
    mask: Option<Storage>,
    /// What the second matmul read.
    probabilities: Storage,
    /// The attention mask, where it was applied by an operator of its own.
    hidden: Option<Storage>,
}

impl Eager {
    /// A batched matmul over the matrices of scores.
    fn batched(&mut self, sizes: Sizes, layout: MatmulLayout, backward: bool) {
        self.workspace();
        let dispatch = if backward { self.settings.backward } else { self.settings.forward };
        let Sizes { matrices, head, seq, dtype, .. } = sizes;
        let rows = matrices * seq;
        let work = Work::GroupedMatmul {
            groups: matrices,
            rows,
            inputs: head,
            outputs: seq,
            dtype,
            layout,
            kernels: Grouping::Batched,
        };
        self.launch("aten.bmm", work, dispatch);
    }

    pub(super) fn unfused_core(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let MegatronOp::Core { recompute, .. } = kind else { unreachable!("called for cores") };
        let sizes = Sizes::of(graph, op, kind);
        let [query, key, value, mask] = [0, 1, 2, 3].map(|at| Self::value(frame, op.inputs[at]));
        let inputs = [query, key, value];
        let save = results == Results::Save && !recompute;
        let (out, kept) = self.core_forward(sizes, inputs, mask, save);
        frame.slots[op.outputs[0]] = Some(out);
        if recompute {
            let held = [query, key, value, mask].map(|storage| self.retain(storage));
            return self.keep(frame, results, &held);
        }
        let saved: Vec<Storage> = kept.map(|kept| kept.list()).unwrap_or_default();
        self.keep(frame, results, &saved);
    }

    /// Forward on queries, keys and values. What is kept for backward holds a reference to each block.
    fn core_forward(
        &mut self,
        sizes: Sizes,
        inputs: [Storage; 3],
        hidden: Storage,
        save: bool,
    ) -> (Storage, Option<Kept>) {
        let dispatch = self.settings.forward;
        let [query, mut key, mut value] = inputs.map(|storage| self.retain(storage));
        if sizes.grouped() {
            for storage in [&mut key, &mut value] {
                let copies = self.made("aten.repeat_interleave", sizes.queries, sizes.keys, dispatch);
                self.release(*storage);
                *storage = copies;
            }
        }
        let bytes = sizes.score_bytes();
        let scores = self.storage(bytes, "aten.baddbmm");
        if sizes.biased {
            // A bias for each key of each head, written to all queries' rows.
            let biases = sizes.matrices * sizes.seq * sizes.dtype.bytes();
            self.pointwise("aten.copy_", MemoryKind::Copy, biases, bytes, dispatch);
        }
        self.batched(sizes, MatmulLayout::Forward, false);
        let [softmax, mut probabilities] = self.softmax(sizes);
        let mut mask = None;
        if sizes.dropout {
            let drawn = self.storage(sizes.scores, "aten.native_dropout");
            let dropped = self.storage(bytes, "aten.native_dropout");
            self.pointwise("aten.native_dropout", MemoryKind::Elementwise, bytes, bytes + sizes.scores, dispatch);
            self.release(probabilities);
            probabilities = dropped;
            mask = Some(drawn);
        }
        if !save {
            for storage in mask.take().into_iter().chain([softmax]) {
                self.release(storage);
            }
        }
        let product = self.storage(sizes.queries, "aten.bmm");
        self.batched(sizes, MatmulLayout::DataGradient, false);
        let out = self.storage(sizes.queries, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, sizes.queries, sizes.queries, dispatch);
        self.release(product);
        if save {
            self.release(scores);
            let hidden = (!sizes.fused_softmax).then(|| self.retain(hidden));
            return (out, Some(Kept { query, key, value, softmax, mask, probabilities, hidden }));
        }
        for storage in [query, key, value, scores, probabilities] {
            self.release(storage);
        }
        (out, None)
    }

    /// Scale, mask and softmax: one kernel in the scores' type, or operators in fp32. The softmax as it is kept, and as
    /// it is used.
    fn softmax(&mut self, sizes: Sizes) -> [Storage; 2] {
        let (bytes, dispatch) = (sizes.score_bytes(), self.settings.forward);
        if sizes.fused_softmax {
            let softmax = self.storage(bytes, "scaled_upper_triang_masked_softmax");
            let read = sizes.seen_bytes();
            self.pointwise("scaled_upper_triang_masked_softmax", MemoryKind::Softmax, read, bytes, dispatch);
            return [softmax, self.retain(softmax)];
        }
        let wide = sizes.scores * DType::Fp32.bytes();
        let scores = self.made("aten._to_copy", wide, bytes, dispatch);
        self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, wide, wide, dispatch);
        let softmax = self.storage(wide, "aten._softmax");
        self.pointwise("aten._softmax", MemoryKind::Softmax, wide, wide, dispatch);
        let narrow = self.made("aten._to_copy", bytes, wide, dispatch);
        self.release(scores);
        [softmax, narrow]
    }

    pub(super) fn unfused_core_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let MegatronOp::Core { recompute, .. } = kind else { unreachable!("called for cores") };
        let sizes = Sizes::of(graph, op, kind);
        let gradients = if recompute {
            let [query, key, value, mask] = Self::saved_by(frame, index);
            let inputs = [query, key, value];
            let before = (self.program.set_pass(Pass::Recompute), self.category);
            self.category = Category::Recompute;
            let (out, kept) = self.core_forward(sizes, inputs, mask, true);
            self.program.set_pass(before.0);
            self.category = before.1;
            let kept = kept.expect("a forward that saves leaves what it saved");
            self.retain(gradient);
            // Leaves of a graph of their own: gradients that are views are copied into their leaves' layout.
            let made = self.core_backward(sizes, kept, gradient, true);
            self.release(out);
            self.release(gradient);
            for storage in [query, key, value, mask] {
                self.release(storage);
            }
            made
        } else {
            let (start, end) = Self::saved(frame, index);
            let kept = Kept::from(&frame.saved[start..end], sizes);
            self.core_backward(sizes, kept, gradient, false)
        };
        for (&input, made) in op.inputs.iter().zip(gradients) {
            self.accumulate(frame, input, made.into());
        }
    }

    /// Backward; takes over the gradient and what was kept. Gradients of queries, keys and values.
    fn core_backward(&mut self, sizes: Sizes, kept: Kept, gradient: Storage, leaves: bool) -> [Storage; 3] {
        let bytes = sizes.score_bytes();
        let mut value = self.temporary(sizes.queries, "aten.bmm");
        self.batched(sizes, MatmulLayout::WeightGradient, true);
        let mut probabilities = self.temporary(bytes, "aten.bmm");
        self.batched(sizes, MatmulLayout::Forward, true);
        self.release(gradient);
        self.release(kept.value);
        self.release(kept.probabilities);
        if leaves && !sizes.grouped() {
            value = self.laid_out(value, sizes.queries);
        }
        if let Some(mask) = kept.mask {
            let name = "aten.native_dropout_backward";
            let before = self.pointwise_gradient(name, bytes, bytes + sizes.scores);
            self.release(probabilities);
            self.release(mask);
            probabilities = before;
        }
        let scores = self.softmax_backward(sizes, &kept, probabilities);
        let product = |this: &mut Self| {
            let matmul = this.temporary(sizes.queries, "aten.bmm");
            this.batched(sizes, MatmulLayout::DataGradient, true);
            let scaled = this.pointwise_gradient("aten.mul", sizes.queries, sizes.queries);
            this.release(matmul);
            scaled
        };
        let (mut query, mut key) = (product(self), product(self));
        for storage in [scores, kept.query, kept.key] {
            self.release(storage);
        }
        // Leaves get their gradients as soon as there are any, the latest first.
        if leaves && !sizes.grouped() {
            key = self.laid_out(key, sizes.queries);
        }
        if leaves {
            query = self.laid_out(query, sizes.queries);
        }
        if sizes.grouped() {
            for storage in [&mut value, &mut key] {
                let sum = self.pointwise_gradient("aten.sum", sizes.keys, sizes.queries);
                self.release(*storage);
                *storage = sum;
            }
        }
        [query, key, value]
    }

    /// A copy in the layout of the leaf whose gradient it is.
    fn laid_out(&mut self, storage: Storage, bytes: u64) -> Storage {
        let copy = self.temporary(bytes, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        self.release(storage);
        copy
    }

    /// The fused kernel writes over the gradient it is given.
    fn softmax_backward(&mut self, sizes: Sizes, kept: &Kept, gradient: Storage) -> Storage {
        let (bytes, dispatch) = (sizes.score_bytes(), self.settings.backward);
        if sizes.fused_softmax {
            let (name, read) = ("scaled_upper_triang_masked_softmax_backward", 2 * sizes.seen_bytes());
            self.pointwise(name, MemoryKind::Softmax, read, bytes, dispatch);
            self.release(kept.softmax);
            return gradient;
        }
        let wide = sizes.scores * DType::Fp32.bytes();
        let cast = self.pointwise_gradient("aten._to_copy", wide, bytes);
        self.release(gradient);
        let before = self.temporary(wide, "aten._softmax_backward_data");
        self.nested(&[wide], "aten._softmax_backward_data");
        self.pointwise("aten._softmax_backward_data", MemoryKind::Softmax, 2 * wide, wide, dispatch);
        self.release(cast);
        self.release(kept.softmax);
        let masked = self.pointwise_gradient("aten.masked_fill", wide, wide);
        self.release(before);
        if let Some(hidden) = kept.hidden {
            self.release(hidden);
        }
        let narrow = self.pointwise_gradient("aten._to_copy", bytes, wide);
        self.release(masked);
        narrow
    }
}

impl Kept {
    fn list(self) -> Vec<Storage> {
        let mut list = vec![self.query, self.key, self.value, self.softmax, self.probabilities];
        list.extend(self.mask);
        list.extend(self.hidden);
        list
    }

    fn from(list: &[Storage], sizes: Sizes) -> Kept {
        Kept {
            query: list[0],
            key: list[1],
            value: list[2],
            softmax: list[3],
            probabilities: list[4],
            mask: sizes.dropout.then(|| list[5]),
            hidden: (!sizes.fused_softmax).then(|| list[list.len() - 1]),
        }
    }
}
