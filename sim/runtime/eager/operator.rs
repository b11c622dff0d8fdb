//! What each operator allocates, launches and saves in forward.

use super::attention::attention_shape;
use super::auxiliary::{auxiliaries, split_attention};
use super::frame::Results;
use super::kernels::has_bias;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::Activation;
use crate::model::graph::{Graph, Op, OpKind};
use crate::program::{Category, DType, Dispatch, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

/// Workspace of a matmul through cublasLt \[B\] (`aten/src/ATen/cuda/CUDABlas.cpp`: 1,024 KiB where nothing else is set).
const LT_WORKSPACE: u64 = 1 << 20;

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
            OpKind::Attention { .. } if self.ulysses.is_some() => return self.ulysses(graph, op, frame, results),
            OpKind::Attention { window, .. } if self.settings.flex_attention => {
                return self.flex(graph, op, window, frame, (results, cached));
            }
            OpKind::FusedLinearCrossEntropy => return self.fused_linear(graph, op, frame),
            OpKind::ChunkedLoss(kind) => return self.chunked_loss(graph, op, kind, frame),
            OpKind::VocabularyLogProbs { words } => return self.vocabulary(graph, op, words, frame),
            OpKind::FlashCrossEntropy => return self.flash_cross_entropy(graph, op, frame),
            OpKind::CompiledCrossEntropy { mean } => return self.compiled_cross_entropy(graph, op, mean, frame),
            OpKind::CrossEntropy { .. } => return self.cross_entropy(graph, op, frame, results, dispatch),
            OpKind::ParallelCrossEntropy => return self.parallel_cross_entropy(graph, op, frame, results),
            OpKind::Experts(kind) => return self.experts(graph, op, kind, frame, (results, cached)),
            OpKind::Megatron(kind) => return self.megatron(graph, op, kind, frame, results),
            OpKind::InternLm(kind) => return self.internlm(graph, op, kind, frame, results),
            OpKind::Nanotron(kind) => return self.nanotron(graph, op, kind, frame, results),
            OpKind::Redistribute(how) => self.redistribute(graph, op, how, frame, cached),
            OpKind::Embedding if graph.dims.tensor.splits() && op.inputs[0] == 0 => {
                self.split_embedding(graph, op, frame);
            }
            OpKind::Unpad { first } => aux[0] = Some(self.unpad(graph, op, first, frame)),
            OpKind::Pad => self.pad(graph, op, frame),
            OpKind::Rotate(rope) => aux[0] = self.rotate(graph, op, (rope, results), frame),
            OpKind::RmsNorm { rows } if !self.settings.fused_rms_norm => {
                // Its rules are in `composite`.
                aux = self.composite_norm(graph, op, (rows, results), frame);
            }
            OpKind::Bmm { .. } => self.bmm(graph, op, frame),
            OpKind::MaskBias => self.mask_bias(graph, op, frame),
            OpKind::Dropout => aux[0] = Some(self.dropout(graph, op, frame)),
            _ if !cached.is_empty() => {
                frame.slots[op.outputs[0]] = Some(cached[0]);
                for (slot, &storage) in aux.iter_mut().zip(&cached[1..]) {
                    *slot = Some(storage);
                }
            }
            _ => {
                let efficient = self.uses_efficient(graph, op);
                let (sizes, count) = auxiliaries(graph, op, efficient);
                let name = kernel_name(op, efficient);
                // The memory-efficient kernel makes its random state before its output.
                let first = if sizes[0] == 8 && count == 3 { 2 } else { 0 };
                for at in 0..first {
                    aux[at] = Some(self.storage(sizes[at], name));
                }
                let copy = self.contiguous_for_norm(graph, op, frame.slots[op.inputs.first().copied().unwrap_or(0)]);
                let output = self.storage(graph.values[op.outputs[0]].bytes(), name);
                frame.slots[op.outputs[0]] = Some(output);
                let mut partial = [None; 2];
                for at in first..count {
                    aux[at] = Some(self.storage(sizes[at], name));
                    if at == 0 && matches!(op.kind, OpKind::Attention { .. }) {
                        let sizes = split_attention(graph.dims, self.settings.multiprocessors);
                        partial = sizes.map(|bytes| (bytes > 0).then(|| self.storage(bytes, name)));
                    }
                }
                for storage in partial.into_iter().flatten() {
                    self.release(storage);
                }
                self.accumulate_wide_heads(graph, op, efficient);
                self.launch_forward(graph, op, dispatch);
                if let Some(copy) = copy {
                    self.release(copy);
                }
                if op.kind == OpKind::CastWeight {
                    self.cache_cast(output);
                }
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
        let slot = |frame: &Frame, value: usize| frame.slots[value].expect("an operator reads live values");
        let keep = |this: &mut Self, frame: &mut Frame, value: usize| {
            let storage = slot(frame, value);
            let saved = this.retain(storage);
            frame.saved.push(saved);
        };
        match op.kind {
            OpKind::RmsNorm { .. } if !self.settings.fused_rms_norm => {}
            OpKind::Linear { .. } if op.inputs.len() > 1 => {
                keep(self, frame, op.inputs[1]);
                keep(self, frame, op.inputs[0]);
            }
            OpKind::Linear { .. } | OpKind::RmsNorm { .. } | OpKind::LayerNorm { .. } => {
                keep(self, frame, op.inputs[0]);
            }
            OpKind::Act(Activation::Relu) | OpKind::Tanh | OpKind::Softmax { .. } => keep(self, frame, op.outputs[0]),
            OpKind::Embedding if op.inputs[0] != 0 => keep(self, frame, op.inputs[0]),
            OpKind::Act(_) | OpKind::Square => keep(self, frame, op.inputs[0]),
            OpKind::RotateComplex { .. } if op.inputs.len() > 1 => keep(self, frame, op.inputs[1]),
            OpKind::Mul | OpKind::Bmm { .. } => {
                keep(self, frame, op.inputs[1]);
                keep(self, frame, op.inputs[0]);
            }
            OpKind::Attention { .. } => {
                if let Some(&bias) = op.inputs.get(3) {
                    keep(self, frame, bias);
                }
                keep(self, frame, op.inputs[1]);
                keep(self, frame, op.inputs[0]);
                keep(self, frame, op.inputs[2]);
                let output = slot(frame, op.outputs[0]);
                let output = Some(self.retain(output));
                let windowed = matches!(op.kind, OpKind::Attention { window: Some(_), .. });
                let order = if self.uses_efficient(graph, op) {
                    [aux[2], output, aux[1], aux[0]]
                } else if windowed {
                    [output, aux[1], aux[0], aux[2]]
                } else {
                    [aux[0], output, aux[1], aux[2]]
                };
                frame.saved.extend(order.into_iter().flatten());
                frame.saved_end.push(frame.saved.len() as u32);
                return;
            }
            _ => {}
        }
        frame.saved.extend(aux.iter().flatten());
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Launches the kernel of a simple operator.
    fn launch_forward(&mut self, graph: &Graph, op: &Op, dispatch: Dispatch) {
        let name = kernel_name(op, self.uses_efficient(graph, op));
        let read: u64 = op.inputs.iter().map(|&value| graph.values[value].bytes()).sum();
        let written: u64 = op.outputs.iter().map(|&value| graph.values[value].bytes()).sum();
        let dtype = graph.values[op.inputs.first().copied().unwrap_or(op.outputs[0])].dtype;
        match op.kind {
            OpKind::Linear { inputs, outputs } if has_bias(op) && !self.hooked => {
                // `addmm` with a bias goes through cublasLt, whose workspace is smaller.
                self.program.transient(Bytes(LT_WORKSPACE), COMPUTE, Category::Workspace, "cublasLt workspace");
                let work = Work::Matmul {
                    m: graph.values[op.inputs[0]].elements / inputs,
                    n: outputs,
                    k: inputs,
                    dtype,
                    layout: MatmulLayout::Forward,
                };
                self.program.launch(COMPUTE, name, work, dispatch);
            }
            OpKind::Linear { inputs, outputs } => {
                let m = graph.values[op.inputs[0]].elements / inputs;
                self.matmul(name, (m, outputs, inputs), dtype, MatmulLayout::Forward, dispatch);
                self.add_bias(op, written, dispatch);
            }
            OpKind::Attention { window, .. } => {
                self.ask_before_attention(dispatch);
                let shape = attention_shape(graph, op, window);
                self.program.launch(COMPUTE, name, Work::Attention { shape, dtype, backward: false }, dispatch);
            }
            OpKind::RmsNorm { rows } | OpKind::LayerNorm { rows } => {
                let [(family, name), _] = self.norm_kernels(op, graph.values[op.inputs[0]].elements / rows);
                self.pointwise(name, family, read, written, dispatch);
            }
            OpKind::RotateComplex { table } => {
                let table = if op.inputs.len() > 1 { 0 } else { 8 * table };
                self.pointwise(name, MemoryKind::Complex, read + table, written, dispatch);
            }
            OpKind::Embedding => {
                let table = written;
                self.pointwise(name, MemoryKind::Gather, table + graph.dims.tokens() * 8, written, dispatch);
            }
            OpKind::CastWeight => {
                let read = written / graph.values[op.outputs[0]].dtype.bytes() * DType::Fp32.bytes();
                self.pointwise(name, MemoryKind::Elementwise, read, written, dispatch);
            }
            OpKind::Contiguous => self.pointwise(name, MemoryKind::Copy, read, written, dispatch),
            OpKind::Softmax { .. } => self.pointwise(name, MemoryKind::Softmax, read, written, dispatch),
            OpKind::RotaryRows => {
                // Positions are compared with the table's length, and the answer checked on the device.
                let positions = 8 * graph.dims.tokens();
                self.pointwise("aten.le", MemoryKind::Elementwise, positions, positions / 8, dispatch);
                self.pointwise("aten.all", MemoryKind::Elementwise, positions / 8, 1, dispatch);
                self.pointwise("aten._assert_async", MemoryKind::Elementwise, 1, 0, dispatch);
                self.pointwise(name, MemoryKind::Gather, written + positions, written, dispatch);
            }
            _ => self.pointwise(name, MemoryKind::Elementwise, read, written, dispatch),
        }
    }
}

/// The operator's name as PyTorch's profiler shows it.
fn kernel_name(op: &Op, efficient: bool) -> &'static str {
    match op.kind {
        OpKind::Linear { .. } if has_bias(op) => "aten.addmm",
        OpKind::Linear { .. } => "aten.mm",
        OpKind::RmsNorm { .. } => "aten._fused_rms_norm",
        OpKind::LayerNorm { .. } => "aten.native_layer_norm",
        OpKind::Cast | OpKind::CastWeight => "aten._to_copy",
        OpKind::RotateComplex { .. } | OpKind::Mul | OpKind::Scale => "aten.mul",
        OpKind::Add => "aten.add",
        OpKind::Rotate(_) => "rope",
        OpKind::RepeatKv | OpKind::Contiguous => "aten.clone",
        OpKind::Tanh => "aten.tanh",
        OpKind::RotaryRows => "aten.index",
        OpKind::Square => "aten.pow",
        OpKind::Positions => "aten.arange",
        OpKind::Concat => "aten.cat",
        OpKind::Act(Activation::Silu) => "aten.silu",
        OpKind::Act(Activation::Gelu | Activation::GeluTanh | Activation::GeluNew) => "aten.gelu",
        OpKind::Act(Activation::Relu | Activation::ReluSquared) => "aten.relu",
        OpKind::Split => "aten.split",
        OpKind::View | OpKind::Slice | OpKind::Expand => "aten.view",
        OpKind::Bmm { .. } => "aten.bmm",
        OpKind::Softmax { .. } => "aten._softmax",
        OpKind::Dropout => "aten.native_dropout",
        OpKind::MaskBias => "aten.where",
        OpKind::Redistribute(_) => "redistribute",
        OpKind::Experts(_) => "experts",
        OpKind::Megatron(_) => "megatron",
        OpKind::InternLm(_) => "internlm",
        OpKind::Nanotron(_) => "nanotron",
        OpKind::ParallelCrossEntropy => "aten._log_softmax",
        OpKind::Attention { .. } if efficient => "aten._scaled_dot_product_efficient_attention",
        OpKind::Attention { .. } => "aten._scaled_dot_product_flash_attention",
        OpKind::Embedding => "aten.embedding",
        OpKind::Unpad { .. } => "aten.gather",
        OpKind::Pad => "aten.index_put_",
        OpKind::CrossEntropy { .. } | OpKind::FusedLinearCrossEntropy => "aten._log_softmax",
        OpKind::ChunkedLoss(_) => "loss by parts",
        OpKind::CompiledCrossEntropy { .. } => "triton_softmax",
        OpKind::VocabularyLogProbs { .. } => "head by vocabulary",
        OpKind::FlashCrossEntropy => "xentropy_cuda_lib.forward",
    }
}
