//! What each operator allocates, launches and saves in forward.

use super::attention::attention_shape;
use super::auxiliary::{attention_state, split_attention};
use super::cross_entropy::Loss;
use super::frame::{Moved, Results};
use super::kernels::has_bias;
use super::shape::MatmulShape;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::operators::Of;
use crate::program::{Category, DType, Dispatch, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

/// Workspace of a matmul through cublasLt \[B\] (`aten/src/ATen/cuda/CUDABlas.cpp`: 1,024 KiB where nothing else is set).
const LT_WORKSPACE: u64 = 1 << 20;
/// The attention kernel that takes a bias, and fp32.
const EFFICIENT: &str = "aten._scaled_dot_product_efficient_attention";

impl Eager {
    /// One operator: allocate, launch, save. What a policy has `cached` is taken from there instead.
    pub(super) fn run_here(
        &mut self,
        graph: &Graph,
        op: &Op,
        frame: &mut Frame,
        results: Results,
        dispatch: Dispatch,
        cached: &[Storage],
    ) {
        let mut aux = [None; 4];
        self.about_to_read(op, frame);
        match op.kind {
            OpKind::Split | OpKind::Slice | OpKind::View | OpKind::Expand => {
                let whole = frame.slots[op.inputs[0]].expect("an operator reads live values");
                for &value in &op.outputs {
                    frame.slots[value] = Some(self.retain(whole));
                }
            }
            OpKind::Attention { .. } if self.shares_sequence() => return self.ulysses(graph, op, frame, results),
            OpKind::Attention { window, .. } if self.settings.flex_attention => {
                return self.flex(graph, op, window, frame, results, cached);
            }
            OpKind::FusedLinearCrossEntropy => return self.fused_linear(graph, op, frame),
            OpKind::ChunkedLoss(kind) => return self.chunked_loss(graph, op, kind, frame),
            OpKind::Preference(kind) => return self.preference(graph, op, kind, frame, results),
            OpKind::VocabularyLogProbs { words } => return self.vocabulary(graph, op, words, frame),
            OpKind::FlashCrossEntropy => return self.flash_cross_entropy(graph, op, frame),
            OpKind::CompiledCrossEntropy { mean } => return self.compiled_cross_entropy(graph, op, mean, frame),
            OpKind::CrossEntropy { upcast, shifts } => {
                return self.cross_entropy(graph, op, Loss { upcast, shifts }, frame, results, dispatch);
            }
            OpKind::ParallelCrossEntropy => return self.parallel_cross_entropy(graph, op, frame, results),
            OpKind::Mamba2(sizes) => return self.mamba(graph, op, sizes, frame, results),
            OpKind::GatedDelta(sizes) => return self.gated_delta(graph, op, sizes, frame, results),
            OpKind::Experts(kind) => return self.experts(graph, op, kind, frame, results, cached),
            OpKind::Megatron(kind) => return self.megatron(graph, op, kind, frame, results),
            OpKind::InternLm(kind) => return self.internlm(graph, op, kind, frame, results),
            OpKind::Nanotron(kind) => return self.nanotron(graph, op, kind, frame, results),
            OpKind::Redistribute(how) => self.redistribute(graph, op, how, frame, cached),
            OpKind::Embedding if graph.dims.tensor.splits() && op.inputs[0] == 0 => {
                self.split_embedding(graph, op, frame);
            }
            OpKind::Unpad { first } => aux[0] = Some(self.unpad(graph, op, first, frame)),
            OpKind::Pad => self.pad(graph, op, frame),
            OpKind::Rotate(rope) => aux[0] = self.rotate(graph, op, rope, frame, results),
            OpKind::RmsNorm { rows } if !self.settings.fused_rms_norm => {
                // Its rules are in `composite`.
                aux = self.composite_norm(graph, op, rows, frame, results);
            }
            OpKind::Bmm { rows, columns, inner } => self.bmm(graph, op, rows, columns, inner, frame),
            OpKind::MaskBias => self.mask_bias(graph, op, frame),
            OpKind::Dropout => aux[0] = Some(self.dropout(graph, op, frame)),
            OpKind::Simple(_)
            | OpKind::Linear { .. }
            | OpKind::RmsNorm { .. }
            | OpKind::LayerNorm { .. }
            | OpKind::Softmax { .. }
            | OpKind::Attention { .. }
            | OpKind::CastWeight
            | OpKind::Embedding
            | OpKind::RotaryRows
            | OpKind::RotateComplex { .. }
                if !cached.is_empty() =>
            {
                frame.slots[op.outputs[0]] = Some(cached[0]);
                for (slot, &storage) in aux.iter_mut().zip(&cached[1..]) {
                    *slot = Some(storage);
                }
            }
            OpKind::Simple(simple) => {
                let moved = self.result(graph, op, frame);
                self.pointwise(simple.kernel, simple.memory, moved.read, moved.written, dispatch);
            }
            OpKind::Linear { inputs, outputs } => {
                let whole = self.unpack_weight(graph, op, graph.values[op.inputs[0]].dtype, dispatch);
                let moved = self.result(graph, op, frame);
                self.linear_forward(graph, op, inputs, outputs, moved, dispatch);
                whole.into_iter().for_each(|whole| self.release(whole));
            }
            OpKind::RmsNorm { rows } => aux = self.norm_forward(graph, op, rows, 1, frame, dispatch),
            OpKind::LayerNorm { rows } => aux = self.norm_forward(graph, op, rows, 2, frame, dispatch),
            OpKind::Attention { window, .. } => aux = self.attention_forward(graph, op, window, frame, dispatch),
            OpKind::Softmax { .. } => {
                let moved = self.result(graph, op, frame);
                self.pointwise(moved.name, MemoryKind::Softmax, moved.read, moved.written, dispatch);
            }
            OpKind::RotateComplex { table } => {
                let moved = self.result(graph, op, frame);
                let table = if op.inputs.len() > 1 { 0 } else { 8 * table };
                self.pointwise(moved.name, MemoryKind::Complex, moved.read + table, moved.written, dispatch);
            }
            OpKind::Embedding => {
                let moved = self.result(graph, op, frame);
                let read = moved.written + graph.dims.tokens() * 8;
                self.pointwise(moved.name, MemoryKind::Gather, read, moved.written, dispatch);
            }
            OpKind::CastWeight => {
                let moved = self.result(graph, op, frame);
                let read = moved.written / graph.values[op.outputs[0]].dtype.bytes() * DType::Fp32.bytes();
                self.pointwise(moved.name, MemoryKind::Elementwise, read, moved.written, dispatch);
                self.cache_cast(moved.output);
            }
            OpKind::RotaryRows => {
                let moved = self.result(graph, op, frame);
                self.rotary_rows(graph, moved, dispatch);
            }
        }
        match results {
            Results::Save => self.save(graph, op, frame, &aux),
            Results::Keep => {
                let output = frame.slots[op.outputs[0]].expect("an operator's output is live right after it ran");
                frame.kept.push(self.retain(output));
                frame.kept.extend(aux.iter().flatten());
            }
            Results::Forget => {
                let windowed = matches!(op.kind, OpKind::Attention { window: Some(_), .. });
                if windowed || self.uses_efficient(graph, op) {
                    aux.reverse();
                }
                for storage in aux.into_iter().flatten() {
                    self.release(storage);
                }
            }
        }
    }

    /// What autograd keeps, in the order it lets go of it.
    fn save(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, aux: &[Option<Storage>; 4]) {
        if let OpKind::Attention { window, .. } = op.kind {
            self.save_attention(graph, op, window, frame, aux);
        } else {
            // A norm in parts keeps what its parts do, which is all in `aux`.
            if !self.in_parts(op) {
                self.save_own(op, frame, &graph.saves(op));
            }
            frame.saved.extend(aux.iter().flatten());
        }
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Keeps inputs and outputs of an operator.
    pub(super) fn save_own(&mut self, op: &Op, frame: &mut Frame, saves: &[Of]) {
        for &kept in saves {
            let value = match kept {
                Of::Input(at) => op.inputs[at],
                Of::Output => op.outputs[0],
            };
            let storage = frame.slots[value].expect("an operator reads live values");
            let saved = self.retain(storage);
            frame.saved.push(saved);
        }
    }

    /// What attention keeps depends on its kernel.
    fn save_attention(
        &mut self,
        graph: &Graph,
        op: &Op,
        window: Option<u64>,
        frame: &mut Frame,
        aux: &[Option<Storage>; 4],
    ) {
        if op.inputs.len() > 3 {
            self.save_own(op, frame, &[Of::Input(3)]);
        }
        self.save_own(op, frame, &[Of::Input(1), Of::Input(0), Of::Input(2)]);
        let output = frame.slots[op.outputs[0]].expect("an operator's output is live right after it ran");
        let output = Some(self.retain(output));
        let order = if self.uses_efficient(graph, op) {
            [aux[2], output, aux[1], aux[0]]
        } else if window.is_some() {
            [output, aux[1], aux[0], aux[2]]
        } else {
            [aux[0], output, aux[1], aux[2]]
        };
        frame.saved.extend(order.into_iter().flatten());
    }

    /// Takes the block of an operator's one result.
    pub(super) fn result(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) -> Moved {
        let name = op.row().kernel;
        let moved = |values: &[usize]| values.iter().map(|&value| graph.values[value].bytes()).sum();
        let output = self.storage(graph.values[op.outputs[0]].bytes(), name);
        frame.slots[op.outputs[0]] = Some(output);
        Moved { name, read: moved(&op.inputs), written: moved(&op.outputs), output }
    }

    fn linear_forward(&mut self, graph: &Graph, op: &Op, inputs: u64, outputs: u64, moved: Moved, dispatch: Dispatch) {
        let value = &graph.values[op.inputs[0]];
        let (m, dtype) = (value.elements / inputs, value.dtype);
        if has_bias(op) && !self.hooks_modules() {
            // `addmm` with a bias goes through cublasLt, whose workspace is smaller.
            self.program.transient(Bytes(LT_WORKSPACE), COMPUTE, Category::Workspace, "cublasLt workspace");
            let work = Work::Matmul { m, n: outputs, k: inputs, dtype, layout: MatmulLayout::Forward };
            self.program.launch(COMPUTE, moved.name, work, dispatch);
        } else {
            self.matmul(moved.name, MatmulShape { m, n: outputs, k: inputs }, dtype, MatmulLayout::Forward, dispatch);
            self.add_bias(op, moved.written, dispatch);
        }
    }

    /// Attention in one kernel; what it makes besides its output.
    fn attention_forward(
        &mut self,
        graph: &Graph,
        op: &Op,
        window: Option<u64>,
        frame: &mut Frame,
        dispatch: Dispatch,
    ) -> [Option<Storage>; 4] {
        let (mut aux, efficient) = ([None; 4], self.uses_efficient(graph, op));
        let name = if efficient { EFFICIENT } else { op.row().kernel };
        let sizes = attention_state(graph, efficient);
        // The memory-efficient kernel makes its random state before its output.
        let first = if efficient { 2 } else { 0 };
        for at in 0..first {
            aux[at] = Some(self.storage(sizes[at], name));
        }
        let output = self.storage(graph.values[op.outputs[0]].bytes(), name);
        frame.slots[op.outputs[0]] = Some(output);
        let mut partial = [None; 2];
        for at in first..sizes.len() {
            aux[at] = Some(self.storage(sizes[at], name));
            if at == 0 {
                let sizes = split_attention(graph.dims, self.settings.sms);
                partial = sizes.map(|bytes| (bytes > 0).then(|| self.storage(bytes, name)));
            }
        }
        for storage in partial.into_iter().flatten() {
            self.release(storage);
        }
        self.accumulate_wide_heads(graph, op, efficient);
        self.ask_before_attention(dispatch);
        let (shape, dtype) = (attention_shape(graph, op, window), graph.values[op.inputs[0]].dtype);
        self.program.launch(COMPUTE, name, Work::Attention { shape, dtype, backward: false }, dispatch);
        aux
    }
}
