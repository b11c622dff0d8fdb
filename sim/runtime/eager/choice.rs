//! A mixture whose experts choose their tokens, in eager operators: `topk` over tokens and batched matmuls.
//!
//! `topk` is `aten/src/ATen/native/cuda/TensorTopK.{cpp,cu}` (long rows are searched by several thread blocks together), which sorts
//! what it found by `Sort.cu`: up to 4,096 in place, beyond that all rows together by value and then by row. Sizes of cub's
//! workspaces were found with PyTorch 2.15 over 2 to 16 rows of 4,350 to 16,000.

use super::experts::SORTED_IN_PLACE;
use super::frame::Node;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, Value};
use crate::program::{DType, Dispatch, Grouping, MatmulLayout, MemoryKind, Work};

const TOPK: &str = "aten.topk";
/// Threads of a thread block of the search.
const THREADS: u64 = 256;
/// Thread blocks of the search on an SM: 65,536 registers, 40 for each thread.
const BLOCKS: u64 = 65_536 / (40 * THREADS);
/// State of cub's scan by key \[B\].
const SCAN: u64 = 1279;

/// Whether several thread blocks search a row together (`should_use_multiblock`).
fn shares_rows(rows: u64, length: u64) -> bool {
    let least = match rows {
        ..=20 => 20_000,
        21..=40 => 10_000,
        41..=80 => 8_000,
        81..200 => 5_000,
        200..800 => 3_000,
        800..=4_000 => 800,
        _ => 400,
    };
    length >= least
}

impl Eager {
    /// Scores with experts first, the largest of each, the cast; what `topk`'s node saves.
    pub(super) fn choose_tokens(
        &mut self,
        graph: &Graph,
        op: &Op,
        count: u64,
        places: u64,
        frame: &mut Frame,
    ) -> Vec<Storage> {
        let dispatch = self.settings.forward;
        let scores = graph.values[op.inputs[0]].bytes();
        let (keys, weights) = (count * places, &graph.values[op.outputs[0]]);
        let (values, indices) = (4 * keys, 8 * keys);
        let turned = self.storage(scores, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, scores, scores, dispatch);
        let largest = self.storage(values, TOPK);
        let rows = self.storage(indices, TOPK);
        let length = scores / (4 * count);
        if shares_rows(count, length) {
            self.search_together(count, length);
        }
        self.pointwise(TOPK, MemoryKind::Elementwise, scores, values + indices, dispatch);
        if places > SORTED_IN_PLACE {
            self.sort_rows(keys);
        }
        self.release(turned);
        frame.slots[op.outputs[1]] = Some(rows);
        frame.slots[op.outputs[0]] = Some(if weights.dtype == DType::Fp32 {
            largest
        } else {
            let cast = self.storage(weights.bytes(), "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, values, weights.bytes(), dispatch);
            self.release(largest);
            cast
        });
        vec![self.retain(rows)]
    }

    /// What thread blocks that search `rows` together keep: each row's k-th value, ranks and digits sought, counts of each thread block.
    fn search_together(&mut self, rows: u64, length: u64) {
        let chip = u64::from(self.settings.sms) * BLOCKS * THREADS;
        let each = (rows * length).div_ceil(chip).clamp(4, 64);
        let thread_blocks = rows * length.div_ceil(THREADS * each);
        let sizes = [
            4 * rows,
            8 * rows,
            8 * rows,
            2 * THREADS * thread_blocks,
            4 * THREADS * rows,
            4 * thread_blocks,
            4 * thread_blocks,
        ];
        let kept = sizes.map(|bytes| self.storage(bytes, TOPK));
        for _ in 0..2 {
            let scan = self.storage(SCAN, TOPK);
            self.release(scan);
        }
        for storage in kept.into_iter().rev() {
            self.release(storage);
        }
    }

    /// Sorts `keys` values of all rows by value, then by row, and puts their indices in that order.
    fn sort_rows(&mut self, keys: u64) {
        const SORT: &str = "aten.sort";
        let (dispatch, values, indices) = (self.settings.forward, 4 * keys, 8 * keys);
        let [order, sorted, places, moved, turned] =
            [indices, values, indices, indices, values].map(|bytes| self.storage(bytes, SORT));
        let buffers = indices.next_multiple_of(256) + values.next_multiple_of(256);
        let by_value = self.storage(buffers + 4 * 2048 + 1024 * keys.div_ceil(5376) + 511, SORT);
        self.release(by_value);
        self.release(turned);
        let by_row = self.storage(2048 + 1024 * keys.div_ceil(5760) + 511, SORT);
        self.release(by_row);
        self.release(moved);
        self.release(places);
        let both = 5 * (values + indices);
        self.pointwise(SORT, MemoryKind::Elementwise, both, both, dispatch);
        let gathered = self.storage(indices, "aten.gather");
        self.pointwise("aten.gather", MemoryKind::Gather, 2 * indices, indices, dispatch);
        self.pointwise("aten.copy_", MemoryKind::Copy, indices, indices, dispatch);
        self.release(gathered);
        self.pointwise("aten.copy_", MemoryKind::Copy, values, values, dispatch);
        self.release(sorted);
        self.release(order);
    }

    /// Zeros for all scores, in which those of the chosen are put.
    pub(super) fn choose_tokens_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let [rows] = Self::saved_by(frame, index);
        let scores = graph.values[op.inputs[0]].bytes();
        let weights = &graph.values[op.outputs[0]];
        let values = weights.elements * 4;
        let gradient = self.cast_gradient(gradient, weights.dtype, DType::Fp32);
        let result = self.pointwise_gradient("aten.scatter_", scores, values);
        self.let_go_of(frame.checkpoint.is_some(), gradient, rows);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Softmax's gradient from one with experts first, which is copied.
    pub(super) fn transposed_score_backward(
        &mut self,
        node: Node<'_>,
        bytes: u64,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { op, index, .. } = node;
        const NAME: &str = "aten._softmax_backward_data";
        let result = self.temporary(bytes, NAME);
        let weighed = self.pointwise_gradient("aten.mul", bytes, 2 * bytes);
        let turned = self.pointwise_gradient("aten.clone", bytes, bytes);
        self.pointwise(NAME, MemoryKind::Softmax, 2 * bytes, bytes, self.settings.backward);
        self.release(turned);
        self.release(weighed);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Launches a batched matmul of all experts with cuBLAS's workspace.
    pub(super) fn batched_experts(
        &mut self,
        value: &Value,
        groups: u64,
        inputs: u64,
        outputs: u64,
        layout: MatmulLayout,
        dispatch: Dispatch,
    ) {
        let (rows, dtype) = (value.elements / inputs, value.dtype);
        self.workspace();
        self.program.launch(
            COMPUTE,
            "aten.bmm",
            Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, kernels: Grouping::Batched },
            dispatch,
        );
    }
}
