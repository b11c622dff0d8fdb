//! Backward of an embedding: a dense gradient of the table, by a scatter or by sorting.

use super::frame::Node;
use super::gradients::round_up;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Dispatch, MemoryKind};

/// Tokens up to which the embedding's backward needs no sorting (`aten/src/ATen/native/cuda/Embedding.cu`).
pub(super) const EMBEDDING_UNSORTED: u64 = 3072;
/// Tokens that one thread of the sorted embedding backward takes (`EmbeddingBackwardKernel.cu`, `NROWS_PER_THREAD`).
const EMBEDDING_ROWS_PER_THREAD: u64 = 10;
/// Keys that one block of cub's radix sort takes (measured: 2,048 B more per pass, 1,024 B more per 4,608 tokens).
const RADIX_SORT_TILE: u64 = 4608;

/// Workspace of cub's radix sort of 64-bit keys up to `largest` \[B\]: two key buffers with counters, a histogram for each
/// 8 bits of the largest key, and one per block of keys.
pub(super) fn radix_sort_workspace(keys: u64, largest: u64) -> u64 {
    let passes = u64::from(u64::BITS - largest.leading_zeros()).div_ceil(8);
    let blocks = keys.div_ceil(RADIX_SORT_TILE);
    2 * round_up(8 * keys, 256) + 2048 * passes + 1024 * blocks + 511
}

impl Eager {
    /// Rows of the rank's part of the table; those of other ranks' words are zeroed before the sum over ranks
    /// (`_MaskPartial`, `torch/distributed/tensor/_ops/_embedding_ops.py`).
    pub(super) fn split_embedding(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let value = &graph.values[op.outputs[0]];
        let (bytes, dispatch) = (value.bytes(), self.settings.forward);
        let (elsewhere, rows) = self.masked_rows(graph.dims.tokens());
        let output = self.storage(bytes, "aten.embedding");
        self.pointwise("aten.embedding", MemoryKind::Gather, bytes + graph.dims.tokens() * 8, bytes, dispatch);
        self.release(rows);
        self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, graph.dims.tokens(), bytes, dispatch);
        self.release(elsewhere);
        frame.slots[op.outputs[0]] = Some(output);
    }

    /// Dense gradient of a table; beyond 3,072 tokens indices are sorted and partial sums kept in fp32.
    pub(super) fn embedding(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let name = "aten.embedding_dense_backward";
        let value = &graph.values[op.outputs[0]];
        let tokens = graph.values[op.inputs[0]].elements;
        let param = &graph.params[op.params[0]];
        // A split table's gradient is made for all of the vocabulary.
        let split = graph.dims.tensor.splits() && op.inputs[0] == 0;
        let parts = if split { graph.dims.tensor.ranks } else { 1 };
        let (rows, width) = (param.rows * parts, param.cols);
        let dispatch = self.settings.backward;
        let table = rows * width * value.dtype.bytes();
        let weight = if tokens > EMBEDDING_UNSORTED {
            self.sorted_embedding(tokens, rows, width, table)
        } else {
            self.temporary(table, name)
        };
        self.pointwise(name, MemoryKind::Copy, 0, table, dispatch);
        self.pointwise(name, MemoryKind::Scatter, value.bytes() * 2, value.bytes(), Dispatch::Extra);
        let target = frame.params.index(op.params[0]);
        let (weight, dtype) = self.upcast(target, weight, value.dtype);
        self.let_go(frame, index, gradient);
        self.store_leaf(target, weight, dtype);
    }

    /// The sorted path: indices are sorted, runs of the same token found, partial sums of each run made in fp32.
    pub(super) fn sorted_embedding(&mut self, tokens: u64, rows: u64, width: u64, table: u64) -> Storage {
        let name = "aten.embedding_dense_backward";
        let indices = 8 * tokens;
        let runs = tokens.min(rows);
        let partials = tokens / EMBEDDING_ROWS_PER_THREAD + runs;
        let sorted = [indices, indices].map(|bytes| self.temporary(bytes, name));
        // Radix sort: the unsorted range, and cub's workspace.
        self.nested(&[indices, radix_sort_workspace(tokens, rows)], name);
        let weight = self.temporary(table, name);
        let run_starts = [indices, 8].map(|bytes| self.temporary(bytes, name));
        self.nested(&[indices, 1279], name);
        let run_sizes = [8 * runs, 8 * runs].map(|bytes| self.temporary(bytes, name));
        self.nested(&[1279], name);
        self.nested(&[8, 8 * partials, partials * round_up(width, 32) * 4], name);
        for storage in [sorted, run_starts, run_sizes].into_iter().flatten().rev() {
            self.release(storage);
        }
        weight
    }
}
