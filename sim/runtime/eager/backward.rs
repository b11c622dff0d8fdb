//! What each operator allocates, launches and lets go of in backward.
//!
//! A node lives like this: its results are allocated, then the gradient it received and the tensors it saved go (under
//! checkpointing in the opposite order, because the unpacked tensors are then the node's own), then second gradients
//! are added up, then parameter gradients are stored.

use super::forward::{attention_shape, kv_heads};
use super::{COMPUTE, Eager, Frame, Gradient, Storage, again};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::operators::moves;
use crate::program::{Category, DType, Dispatch, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

const SUM: &str = "aten.sum";

fn last_power_of_2(value: u64) -> u64 {
    1 << value.max(1).ilog2()
}

pub(super) fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

impl Eager {
    /// Runs the backward of a frame from the gradient of its output, which it takes over. Returns the gradient of the
    /// input, where the input has one. Parameters' gradients go to the leaves.
    pub fn backward(&mut self, graph: &Graph, frame: &mut Frame, gradient: Storage) -> Option<Storage> {
        self.accumulate(frame, graph.output, gradient.into());
        self.backward_ops(graph, frame, 0..graph.ops.len());
        self.finish_backward(frame)
    }

    /// Starts a backward that [`Eager::backward_ops`] then runs in parts.
    pub fn start_backward(&mut self, graph: &Graph, frame: &mut Frame, gradient: Storage) {
        self.accumulate(frame, graph.output, gradient.into());
    }

    /// Runs the backward of a range of operators, last to first but where the graph has an order of its own.
    pub fn backward_ops(&mut self, graph: &Graph, frame: &mut Frame, range: std::ops::Range<usize>) {
        for step in 0..range.len() {
            let index = graph.back(&range, step);
            self.lay_together(graph, &graph.ops[index], frame);
            self.op_begins(frame, index, true);
            // The first node that saved something unpacks it, and the recompute runs.
            if graph.ops[index].row().unpacks && frame.checkpoint.is_some() && !frame.recomputed {
                self.recompute(graph, frame);
            }
            if self.inputs_only {
                self.keep_saved(&graph.ops[index], index, frame);
            }
            self.run_again_before(graph, frame, index);
            match Self::runs_again(graph, frame, index) {
                Some(at) if graph.again[at].ops.end == index + 1 => self.part_backward(graph, frame, at),
                Some(_) => {}
                None => self.node(graph, &graph.ops[index], index, frame),
            }
            if self.second_run && again::reduces(graph, 0, index) {
                self.reduce_maxima();
            }
            if !self.ends_itself(&graph.ops[index]) {
                self.op_ended(frame, index, true);
            }
        }
    }

    /// Ends a backward: the gradient of the input, where it has one.
    pub fn finish_backward(&mut self, frame: &mut Frame) -> Option<Storage> {
        for unused in std::mem::take(&mut frame.kept) {
            self.release(unused);
        }
        frame.gradients[0].take().map(|gradient| gradient.storage)
    }

    pub(super) fn saved(frame: &Frame, index: usize) -> (usize, usize) {
        let start = if index == 0 { 0 } else { frame.saved_end[index - 1] as usize };
        (start, frame.saved_end[index] as usize)
    }

    /// What a node saved, all of it.
    pub(super) fn saved_by<const COUNT: usize>(frame: &Frame, index: usize) -> [Storage; COUNT] {
        let (start, end) = Self::saved(frame, index);
        frame.saved[start..end].try_into().expect("a node has saved what its kind saves")
    }

    /// Lets go of what a node received and saved.
    pub(super) fn let_go(&mut self, frame: &Frame, index: usize, gradient: Storage) {
        let (start, end) = Self::saved(frame, index);
        if frame.checkpoint.is_some() {
            self.let_go_of_saved(frame, index);
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.release(gradient);
            for at in start..end {
                self.release(frame.saved[at]);
            }
        }
    }

    /// Lets go of the block's input, which the checkpoint holds, after the last node that saved something.
    pub(super) fn let_go_of_input(&mut self, frame: &Frame, index: usize) {
        if frame.holds_input && matches!(Self::saved(frame, index), (0, 1..)) {
            self.release(frame.input);
        }
    }

    /// Lets go of what a node of a recomputed block saved.
    pub(super) fn let_go_of_saved(&mut self, frame: &Frame, index: usize) {
        let (start, end) = Self::saved(frame, index);
        for at in (start..end).rev() {
            self.release(frame.saved[at]);
        }
    }

    pub(super) fn temporary(&mut self, bytes: u64, name: &'static str) -> Storage {
        self.storage_as(bytes, Category::BackwardTemporary, name)
    }

    /// A pointwise backward kernel with one result.
    pub(super) fn pointwise_gradient(&mut self, name: &'static str, bytes: u64, read: u64) -> Storage {
        let storage = self.temporary(bytes, name);
        let dispatch = self.settings.backward;
        self.pointwise(name, MemoryKind::Elementwise, read, bytes, dispatch);
        storage
    }

    pub(super) fn node_here(&mut self, graph: &Graph, op: &Op, index: usize, frame: &mut Frame) {
        if op.kind == OpKind::Split {
            return self.split(graph, op, frame);
        }
        let Some(Gradient { storage: gradient, .. }) = frame.gradients[op.outputs[0]].take() else { return };
        let dispatch = self.settings.backward;
        let input = op.inputs.first().copied().unwrap_or(op.outputs[0]);
        let bytes = graph.values[input].bytes();
        match op.kind {
            OpKind::Simple(simple) => self.simple_backward(graph, op, (index, simple), frame, gradient),
            OpKind::Linear { .. } if self.inputs_only => self.linear_input(graph, op, index, frame, gradient),
            OpKind::Linear { inputs, outputs } if op.params.is_empty() => {
                self.linear_of_values(graph, op, index, frame, gradient, (inputs, outputs));
            }
            OpKind::CastWeight => self.cast_weight_backward(graph, op, frame, gradient),
            OpKind::Linear { inputs, outputs } => {
                self.linear(graph, op, index, frame, gradient, (inputs, outputs));
            }
            OpKind::RmsNorm { rows } if !self.settings.fused_rms_norm => {
                let (start, end) = Self::saved(frame, index);
                let saved = frame.saved[start..end].to_vec();
                self.composite_norm_backward(graph, op, (rows, start == 0), frame, (&saved, gradient));
            }
            OpKind::RmsNorm { .. } | OpKind::LayerNorm { .. } => self.norm(graph, op, index, frame, gradient),
            OpKind::RotateComplex { table } => {
                let conjugate = self.temporary(8 * table, "aten.clone");
                self.pointwise("aten.clone", MemoryKind::Copy, 8 * table, 8 * table, dispatch);
                let result = self.temporary(bytes, "aten.mul");
                self.pointwise("aten.mul", MemoryKind::Complex, bytes + 8 * table, bytes, dispatch);
                self.release(conjugate);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            OpKind::Rotate(rope) => self.rotate_backward(graph, op, (index, rope), frame, gradient),
            OpKind::Expand => self.made_gradients(graph, op, (index, &[moves::SUM]), frame, gradient),
            OpKind::View => self.accumulate(frame, input, Gradient { storage: gradient, view: true }),
            OpKind::RotaryRows => self.release(gradient),
            OpKind::Unpad { .. } => self.unpad_backward(graph, op, index, frame, gradient),
            OpKind::Pad => self.pad_backward(graph, op, index, frame, gradient),
            OpKind::Attention { window, .. } if self.ulysses.is_some() => {
                self.ulysses_backward(graph, op, (index, window), frame, gradient);
            }
            OpKind::Attention { window, .. } if self.settings.flex_attention => {
                self.flex_backward(graph, op, (index, window), frame, gradient);
            }
            OpKind::Attention { window, .. } => self.attention(graph, op, index, frame, gradient, window),
            OpKind::Embedding => self.embedding(graph, op, index, frame, gradient),
            OpKind::ChunkedLoss(_) => self.chunked_loss_backward(op, index, frame, gradient),
            OpKind::FusedLinearCrossEntropy => {
                self.release(gradient);
                self.fused_linear_backward(graph, op, Self::saved_by(frame, index), frame);
            }
            OpKind::VocabularyLogProbs { words } => {
                self.vocabulary_backward(graph, op, (words, Self::saved_by(frame, index)), frame, gradient);
            }
            OpKind::FlashCrossEntropy => {
                self.flash_cross_entropy_backward(graph, op, Self::saved_by(frame, index), frame, gradient);
            }
            OpKind::CompiledCrossEntropy { .. } => {
                self.compiled_cross_entropy_backward(graph, op, index, frame, gradient);
            }
            OpKind::CrossEntropy { upcast, shifts } => {
                self.cross_entropy_backward(graph, op, (index, upcast, shifts), frame, gradient);
            }
            OpKind::ParallelCrossEntropy => {
                self.parallel_cross_entropy_backward(graph, op, Self::saved_by(frame, index), frame, gradient);
            }
            OpKind::Experts(kind) => self.experts_backward(graph, op, (index, kind), frame, gradient),
            OpKind::Megatron(kind) => self.megatron_backward(graph, op, (index, kind), frame, gradient),
            OpKind::InternLm(kind) => self.internlm_backward(graph, op, (index, kind), frame, gradient),
            OpKind::Nanotron(kind) => self.nanotron_backward(graph, op, (index, kind), frame, gradient),
            OpKind::Redistribute(how) => self.redistribute_backward(graph, op, how, frame, gradient),
            OpKind::Bmm { rows, columns, inner } => {
                self.bmm_backward(graph, op, (index, rows, columns, inner), frame, gradient);
            }
            OpKind::Softmax { .. } => self.scores_backward(graph, op, index, frame, gradient),
            OpKind::Dropout => self.dropout_backward(graph, op, index, frame, gradient),
            OpKind::Slice => self.slice_backward(graph, op, frame, gradient),
            OpKind::MaskBias => self.release(gradient),
            OpKind::Split => {}
        }
    }

    /// Weight gradient, then input gradient; with a bias (`addmm`) the bias's sum comes last.
    fn linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        index: usize,
        frame: &mut Frame,
        gradient: Storage,
        (inputs, outputs): (u64, u64),
    ) {
        let dispatch = self.settings.backward;
        let tokens = graph.values[op.inputs[0]].elements / inputs;
        let dtype = graph.values[op.inputs[0]].dtype;
        let has_bias = op.params.len() > 1;
        let input_gradient = |this: &mut Self| {
            let result = this.temporary(tokens * inputs * dtype.bytes(), "aten.mm");
            this.matmul("aten.mm", (tokens, inputs, outputs), dtype, MatmulLayout::DataGradient, dispatch);
            result
        };
        let weight_gradient = |this: &mut Self| {
            let result = this.temporary(outputs * inputs * dtype.bytes(), "aten.mm");
            this.matmul("aten.mm", (outputs, inputs, tokens), dtype, MatmulLayout::WeightGradient, dispatch);
            result
        };
        let (weight, result) = if has_bias || self.hooked {
            let result = input_gradient(self);
            (weight_gradient(self), result)
        } else {
            let weight = weight_gradient(self);
            (weight, input_gradient(self))
        };
        // The bias's gradient is summed when the node has run: under checkpointing its saved input has gone by then. A function
        // in Python holds it to its end.
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed && !self.hooked {
            self.let_go_of_saved(frame, index);
        }
        let bias = has_bias.then(|| {
            let sum = self.sum_rows(tokens, outputs, dtype);
            self.upcast(frame.params.index(op.params[1]), sum, dtype)
        });
        if checkpointed && !self.hooked {
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.let_go(frame, index, gradient);
        }
        let result = Gradient { storage: result, view: !self.hooked };
        let weight_param = frame.params.index(op.params[0]);
        // Which of the two gradients autograd passes on first depends on which view was made last in forward.
        if self.hooked {
            self.store_leaf(weight_param, weight, dtype);
            if let Some((bias, bias_dtype)) = bias {
                self.store_leaf(frame.params.index(op.params[1]), bias, bias_dtype);
            }
            self.module_ended(frame, index);
            self.accumulate(frame, op.inputs[0], result);
        } else if let Some((bias, bias_dtype)) = bias {
            self.store_leaf(frame.params.index(op.params[1]), bias, bias_dtype);
            self.store_weight(weight_param, weight, dtype);
            self.accumulate(frame, op.inputs[0], result);
        } else {
            self.accumulate(frame, op.inputs[0], result);
            self.store_weight(weight_param, weight, dtype);
        }
        if let (true, Some(sum)) = (graph.is_dtensor(op.inputs[0]), &mut frame.gradients[op.inputs[0]]) {
            sum.view = true;
        }
    }

    /// Stores a matmul's weight gradient: its transpose, or a copy in the wider type it is kept in.
    fn store_weight(&mut self, param: usize, weight: Storage, dtype: DType) {
        let (made, cast) = self.upcast(param, weight, dtype);
        if cast == dtype {
            self.store_view(param, made, cast);
        } else {
            self.store_leaf(param, made, cast);
        }
    }

    /// Sum over the rows of a matrix. Thread blocks that share a column leave partial sums in a buffer, with a
    /// semaphore each (`aten/src/ATen/native/cuda/Reduce.cuh`: 512 threads over up to 4 columns a thread).
    pub(super) fn sum_rows(&mut self, rows: u64, columns: u64, dtype: DType) -> Storage {
        let sum = self.temporary(columns * dtype.bytes(), SUM);
        self.sum_buffers(rows, columns, 4);
        let read = rows * columns * dtype.bytes();
        self.pointwise(SUM, MemoryKind::Elementwise, read, columns * dtype.bytes(), self.settings.backward);
        sum
    }

    /// The partial sums and semaphores of such a sum, whose numbers are so many bytes while they are added up.
    pub(super) fn sum_buffers(&mut self, rows: u64, columns: u64, number: u64) {
        let vector = [4, 2, 1].into_iter().find(|&vector| columns.is_multiple_of(vector)).unwrap_or(1);
        let threads = 512 / vector;
        let width = last_power_of_2(columns / vector).min(32);
        let height = last_power_of_2(rows).min(threads / width);
        let per_thread = rows.div_ceil(height);
        let grid = (columns / vector).div_ceil(width);
        // 2,048 threads per multiprocessor.
        let target = u64::from(self.settings.multiprocessors) * 2048 / (width * height);
        if per_thread >= 256 && grid <= target {
            let shared = target.div_ceil(grid).min(per_thread.div_ceil(16)).max(per_thread.div_ceil(256));
            if shared > 1 {
                self.nested(&[number * columns * shared * width * vector, 4 * grid], SUM);
            }
        }
    }

    /// Views of one value: their gradients are concatenated once all have arrived.
    fn split(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let bytes = graph.values[op.inputs[0]].bytes();
        let whole = self.temporary(bytes, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        for &part in &op.outputs {
            if let Some(gradient) = frame.gradients[part].take() {
                self.release(gradient.storage);
            }
        }
        self.accumulate(frame, op.inputs[0], whole.into());
    }

    /// Flash attention (`aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`, `mha_bwd`): dq, dk, dv; a
    /// row sum; dq in fp32; with fewer key-value heads than query heads, dk and dv per query head. The memory-efficient
    /// kernel (fp32) expands keys and values and takes a workspace.
    fn attention(
        &mut self,
        graph: &Graph,
        op: &Op,
        index: usize,
        frame: &mut Frame,
        gradient: Storage,
        window: Option<u64>,
    ) {
        let copy = self.gradient_by_heads(graph, op);
        let results = self.attention_gradients(graph, op, window, self.settings.backward);
        if let Some(copy) = copy {
            self.release(copy);
        }
        self.let_go(frame, index, gradient);
        for (&value, result) in op.inputs.iter().zip(results) {
            self.accumulate(frame, value, result.into());
        }
    }

    /// The attention backward itself: the gradients of q, k and v.
    pub(in crate::runtime) fn attention_gradients(
        &mut self,
        graph: &Graph,
        op: &Op,
        window: Option<u64>,
        dispatch: Dispatch,
    ) -> [Storage; 3] {
        let d = graph.dims;
        let dtype = graph.values[op.inputs[0]].dtype;
        let efficient = self.uses_efficient(graph, op);
        let name = if efficient {
            "aten._scaled_dot_product_efficient_attention_backward"
        } else {
            "aten._scaled_dot_product_flash_attention_backward"
        };
        let sizes = [0, 1, 2].map(|at| graph.values[op.inputs[at]].bytes());
        let results = sizes.map(|bytes| self.temporary(bytes, name));
        let grouped = d.n != kv_heads(graph, op);
        let rows = round_up(d.s, 128);
        let row_sum = d.b * d.n * rows * 4;
        if efficient {
            let expanded = if grouped { [0; 2].map(|_| Some(self.temporary(sizes[0], name))) } else { [None; 2] };
            let sum = if dtype == DType::Fp32 {
                // The row sums of gradient · output are made outside the kernel, and once more contiguously.
                let product = self.temporary(sizes[0], name);
                let sum = self.temporary(d.b * d.n * d.s * 4, name);
                let contiguous = self.temporary(d.b * d.n * d.s * 4, name);
                self.release(sum);
                self.release(product);
                contiguous
            } else {
                self.temporary(d.b * d.n * d.s * 4, name)
            };
            // The kernel's workspace: an fp32 accumulator the size of q, with 16 B of locks per tile.
            // Wider heads than registers hold, in half precision, have one for each gradient.
            let wide = d.h > 128 && dtype != DType::Fp32;
            let tile = if dtype == DType::Fp32 || wide { 64 } else { 128 };
            let tiles = d.s.div_ceil(tile) * d.h.div_ceil(128);
            let accumulators = if wide { 3 } else { 1 };
            let bytes = d.b * d.n * (accumulators * round_up(d.s, tile) * d.h * 4 + 16 * tiles);
            let workspace = self.temporary(bytes, name);
            self.release(sum);
            self.release(workspace);
            for storage in expanded.into_iter().flatten() {
                self.release(storage);
            }
        } else {
            let sum = self.temporary(row_sum, name);
            let accumulator = self.query_accumulator(graph, name);
            let expanded = if grouped { [0; 2].map(|_| Some(self.temporary(sizes[0], name))) } else { [None; 2] };
            for storage in expanded.into_iter().rev().flatten() {
                self.release(storage);
            }
            self.release(accumulator);
            self.release(sum);
        }
        let shape = attention_shape(graph, op, window);
        self.program.launch(COMPUTE, name, Work::Attention { shape, dtype, backward: true }, dispatch);
        results
    }

    /// The gradient of the loss with respect to itself, which starts a backward.
    pub fn seed_gradient(&mut self, dtype: DType) -> Storage {
        let ones = self.temporary(dtype.bytes(), "aten.ones_like");
        self.program.launch(
            COMPUTE,
            "aten.ones_like",
            Work::Memory { kind: MemoryKind::Copy, read: Bytes(0), written: Bytes(4) },
            self.settings.backward,
        );
        ones
    }
}
