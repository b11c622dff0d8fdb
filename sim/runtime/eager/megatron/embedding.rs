//! `LanguageModelEmbedding` (`megatron/core/models/common/embeddings/language_model_embedding.py`): words of the rank's
//! part of the table, positions, the transposition to `[S, B, D]`, the rank's part of the sequence, dropout.
//!
//! Words that other ranks have are zeroed and the sum is taken over ranks: all-reduced where positions are added next,
//! else reduced and scattered under sequence parallelism. Where pipeline ranks share the table, the words' sum is given.

use super::super::embedding::EMBEDDING_UNSORTED;
use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, Param};
use crate::program::{Collective, DType, Dispatch, MemoryKind};

/// Bytes of an index.
const INDEX: u64 = 8;

/// What an embedding does besides looking words up ([`MegatronOp::Embed`](crate::model::megatron::MegatronOp::Embed)).
#[derive(Clone, Copy)]
pub(super) struct Embed {
    /// Positions are looked up in a table of their own, and added.
    pub(super) learned: bool,
    pub(super) dropout: bool,
    /// The words' rows are given, summed over the pipeline ranks that share the table.
    pub(super) summed: bool,
}

impl Eager {
    pub(super) fn embed(&mut self, graph: &Graph, op: &Op, embed: Embed, frame: &mut Frame, results: Results) {
        let Embed { learned, dropout, summed } = embed;
        let (d, dispatch) = (graph.dims, self.settings.forward);
        let value = &graph.values[op.outputs[0]];
        let whole = d.tokens() * d.d * value.dtype.bytes();
        let tokens = Self::value(frame, op.inputs[0]);
        let mut saved = vec![];
        if d.tensor.splits() {
            let (elsewhere, rows) = self.masked_rows(d.tokens());
            saved.extend([elsewhere, rows]);
        } else if !summed {
            saved.push(self.retain(tokens));
        }
        let mut word = if summed { self.retain(tokens) } else { self.looked_up(d.tokens(), whole) };
        if d.tensor.splits() {
            self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, d.tokens(), whole, dispatch);
        }
        let scattered = d.tensor.sequence && !learned;
        let mut held = vec![];
        let mut out;
        if scattered {
            if d.b > 1 {
                word = self.copied(word, whole);
            }
            out = self.storage(value.bytes(), "reduce_scatter_tensor");
            self.exchange_now(Collective::ReduceScatter, whole, value.dtype);
            self.release(word);
            held.push(out);
            out = self.part_of(value.bytes());
        } else {
            if d.tensor.splits() {
                self.exchange_now(Collective::AllReduce, whole, value.dtype);
            }
            out = word;
            if learned {
                op.params.iter().skip(1).for_each(|&param| self.is_reading(param, frame));
                let positions = self.looked_up(d.tokens(), whole);
                saved.push(self.retain(Self::value(frame, op.inputs[1])));
                held.extend([word, positions]);
                out = self.made("aten.add", whole, 2 * whole, dispatch);
            }
            if d.b > 1 {
                out = self.copied(out, whole);
            }
            if d.tensor.sequence {
                let part = self.part_of(value.bytes());
                self.release(out);
                out = part;
            }
        }
        if dropout {
            let mask = self.storage(value.elements, "aten.native_dropout");
            let dropped = self.storage(value.bytes(), "aten.native_dropout");
            let written = value.bytes() + value.elements;
            self.pointwise("aten.native_dropout", MemoryKind::Elementwise, value.bytes(), written, dispatch);
            saved.push(mask);
            self.release(out);
            out = dropped;
        }
        for storage in held {
            self.release(storage);
        }
        if d.b == 1 && !d.tensor.sequence && !dropout {
            // The result is a view, and a tensor that is none is made in its place (`make_viewless_tensor`).
            let one = self.storage(value.dtype.bytes(), "aten.empty");
            self.release(one);
        }
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &saved);
    }

    /// Rows of a table.
    pub(super) fn looked_up(&mut self, tokens: u64, bytes: u64) -> Storage {
        let rows = self.storage(bytes, "aten.embedding");
        self.pointwise("aten.embedding", MemoryKind::Gather, bytes + tokens * INDEX, bytes, self.settings.forward);
        rows
    }

    /// A contiguous copy in the place of a transposed view.
    pub(super) fn copied(&mut self, storage: Storage, bytes: u64) -> Storage {
        let copy = self.part_of(bytes);
        self.release(storage);
        copy
    }

    fn part_of(&mut self, bytes: u64) -> Storage {
        let copy = self.storage(bytes, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.forward);
        copy
    }

    pub(super) fn embed_backward(&mut self, node: Node<'_>, embed: Embed, frame: &mut Frame, mut gradient: Storage) {
        let Node { graph, op, index } = node;
        let Embed { learned, dropout, summed } = embed;
        let (d, dispatch) = (graph.dims, self.settings.backward);
        let value = &graph.values[op.outputs[0]];
        let whole = d.tokens() * d.d * value.dtype.bytes();
        let (start, end) = Self::saved(frame, index);
        let mut saved = frame.saved[start..end].to_vec();
        if dropout {
            let read = value.bytes() + value.elements;
            let before = self.pointwise_gradient("aten.native_dropout_backward", value.bytes(), read);
            self.release(gradient);
            self.release(saved.pop().expect("dropout saves its mask"));
            gradient = before;
        }
        if d.tensor.sequence {
            let all = self.temporary(whole, "all_gather_into_tensor");
            self.exchange_now(Collective::AllGather, whole, value.dtype);
            self.release(gradient);
            gradient = all;
        }
        if learned {
            let local = op.params[usize::from(!summed)];
            let param = &graph.params[local];
            let positions = saved.pop().expect("learned positions save their rows");
            self.retain(gradient);
            let table = self.table_gradient(graph, param, gradient, value.dtype);
            self.release(positions);
            self.store_leaf(frame.params.index(local), table, value.dtype);
        }
        if summed {
            if d.b > 1 {
                let copy = self.part_of(whole);
                self.release(gradient);
                gradient = copy;
            }
            return self.accumulate(frame, op.inputs[0], gradient.into());
        }
        let rows = saved.pop().expect("an embedding saves its rows");
        if let Some(elsewhere) = saved.pop() {
            let filled = self.temporary(whole, "aten.masked_fill");
            self.pointwise("aten.masked_fill", MemoryKind::Elementwise, whole + d.tokens(), whole, dispatch);
            self.release(gradient);
            self.release(elsewhere);
            gradient = filled;
        }
        let param = &graph.params[op.params[0]];
        // What the mask was applied to is contiguous already.
        let table = if d.tensor.splits() {
            let table = self.dense_gradient(d.tokens(), param, value.dtype, whole);
            self.release(gradient);
            table
        } else {
            self.table_gradient(graph, param, gradient, value.dtype)
        };
        self.release(rows);
        self.store_leaf(frame.params.index(op.params[0]), table, value.dtype);
    }

    /// The dense gradient of a table from a gradient in `[S, B, D]`, which it takes over and first transposes.
    fn table_gradient(&mut self, graph: &Graph, param: &Param, gradient: Storage, dtype: DType) -> Storage {
        let bytes = graph.dims.tokens() * graph.dims.d * dtype.bytes();
        let copy = (graph.dims.b > 1).then(|| {
            let copy = self.temporary(bytes, "aten.clone");
            self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.backward);
            copy
        });
        let table = self.dense_gradient(graph.dims.tokens(), param, dtype, bytes);
        for storage in copy.into_iter().chain([gradient]) {
            self.release(storage);
        }
        table
    }

    pub(in crate::runtime::eager) fn dense_gradient(
        &mut self,
        tokens: u64,
        param: &Param,
        dtype: DType,
        bytes: u64,
    ) -> Storage {
        const NAME: &str = "aten.embedding_dense_backward";
        let table = param.elements() * dtype.bytes();
        let made = if tokens > EMBEDDING_UNSORTED {
            self.sorted_embedding(tokens, param.rows, param.cols, table)
        } else {
            self.temporary(table, NAME)
        };
        self.pointwise(NAME, MemoryKind::Copy, 0, table, self.settings.backward);
        self.pointwise(NAME, MemoryKind::Scatter, bytes * 2, bytes, Dispatch::Extra);
        made
    }
}
