//! What each operator allocates, launches and lets go of in backward.
//!
//! A node lives like this: its results are allocated, then the gradient it received and the tensors it saved go (under
//! checkpointing in the opposite order, because the unpacked tensors are then the node's own), then second gradients
//! are added up, then parameter gradients are stored.

use super::cross_entropy::Loss;
use super::frame::Node;
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::operators::moves;
use crate::program::{DType, MatmulLayout, MemoryKind};

impl Eager {
    pub(super) fn node_here(&mut self, node: Node<'_>, frame: &mut Frame) {
        let Node { graph, op, index } = node;
        if !graph.is_node(op) {
            return;
        }
        if op.kind == OpKind::Split {
            return self.split(graph, op, frame);
        }
        let Some(Gradient { storage: gradient, .. }) = frame.gradients[op.outputs[0]].take() else { return };
        let dispatch = self.settings.backward;
        let input = op.inputs.first().copied().unwrap_or(op.outputs[0]);
        let bytes = graph.values[input].bytes();
        match op.kind {
            OpKind::Simple(simple) => self.simple_backward(node, simple, frame, gradient),
            OpKind::Linear { .. } if self.inputs_only() => self.linear_input(node, frame, gradient),
            OpKind::Linear { inputs, outputs } if op.params.is_empty() => {
                self.linear_of_values(node, inputs, outputs, frame, gradient);
            }
            OpKind::CastWeight => self.cast_weight_backward(graph, op, frame, gradient),
            OpKind::Linear { .. } if graph.is_partial() => self.partial_linear(node, frame, gradient),
            OpKind::Linear { inputs, outputs } => {
                self.linear(node, inputs, outputs, frame, gradient);
            }
            OpKind::RmsNorm { rows } if !self.settings.fused_rms_norm => {
                self.composite_norm_backward(node, rows, frame, gradient);
            }
            OpKind::RmsNorm { .. } | OpKind::LayerNorm { .. } => self.norm(node, frame, gradient),
            OpKind::RotateComplex { table } => {
                let conjugate = self.temporary(8 * table, "aten.clone");
                self.pointwise("aten.clone", MemoryKind::Copy, 8 * table, 8 * table, dispatch);
                let result = self.temporary(bytes, "aten.mul");
                self.pointwise("aten.mul", MemoryKind::Complex, bytes + 8 * table, bytes, dispatch);
                self.release(conjugate);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            OpKind::Rotate(rope) => self.rotate_backward(node, rope, frame, gradient),
            OpKind::Expand => self.made_gradients(node, &[moves::SUM], frame, gradient),
            OpKind::View => self.accumulate(frame, input, Gradient { storage: gradient, view: true }),
            OpKind::RotaryRows => self.release(gradient),
            OpKind::Unpad { .. } => self.unpad_backward(node, frame, gradient),
            OpKind::Pad => self.pad_backward(node, frame, gradient),
            OpKind::Attention { window, .. } if self.shares_sequence() => {
                self.ulysses_backward(node, window, frame, gradient);
            }
            OpKind::Attention { window, .. } if self.settings.flex_attention => {
                self.flex_backward(node, window, frame, gradient);
            }
            OpKind::Attention { window, .. } => self.attention(node, window, frame, gradient),
            // Of a frozen table's result: a leaf that was told to ask for a gradient.
            OpKind::Embedding if !graph.trains(op, 0) => self.release(gradient),
            OpKind::Embedding => self.embedding(node, frame, gradient),
            OpKind::ChunkedLoss(_) => self.chunked_loss_backward(node, frame, gradient),
            OpKind::Preference(kind) => self.preference_backward(node, kind, frame, gradient),
            OpKind::FusedLinearCrossEntropy => {
                self.release(gradient);
                self.fused_linear_backward(node, frame);
            }
            OpKind::VocabularyLogProbs { words } => {
                self.vocabulary_backward(node, words, frame, gradient);
            }
            OpKind::FlashCrossEntropy => {
                self.flash_cross_entropy_backward(node, frame, gradient);
            }
            OpKind::CompiledCrossEntropy { .. } => {
                self.compiled_cross_entropy_backward(node, frame, gradient);
            }
            OpKind::CrossEntropy { upcast, shifts } => {
                self.cross_entropy_backward(node, Loss { upcast, shifts }, frame, gradient);
            }
            OpKind::ParallelCrossEntropy => {
                self.parallel_cross_entropy_backward(node, frame, gradient);
            }
            OpKind::Mamba2(sizes) => self.mamba_backward(node, sizes, frame, gradient),
            OpKind::GatedDelta(sizes) => self.gated_delta_backward(node, sizes, frame, gradient),
            OpKind::Experts(kind) => self.experts_backward(node, kind, frame, gradient),
            OpKind::Megatron(kind) => self.megatron_backward(node, kind, frame, gradient),
            OpKind::InternLm(kind) => self.internlm_backward(node, kind, frame, gradient),
            OpKind::Nanotron(kind) => self.nanotron_backward(node, kind, frame, gradient),
            OpKind::Redistribute(how) => self.redistribute_backward(graph, op, how, frame, gradient),
            OpKind::Bmm { rows, columns, inner } => {
                self.bmm_backward(node, rows, columns, inner, frame, gradient);
            }
            OpKind::Softmax { .. } => self.scores_backward(node, frame, gradient),
            OpKind::Dropout => self.dropout_backward(node, frame, gradient),
            OpKind::Slice => self.slice_backward(graph, op, frame, gradient),
            OpKind::MaskBias => self.release(gradient),
            OpKind::Split => {}
        }
    }

    /// Weight gradient, then input gradient; with a bias (`addmm`) the bias's sum comes last.
    fn linear(&mut self, node: Node<'_>, inputs: u64, outputs: u64, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let dispatch = self.settings.backward;
        let tokens = graph.values[op.inputs[0]].elements / inputs;
        let dtype = graph.values[op.inputs[0]].dtype;
        let has_bias = op.params.len() > 1;
        let input_gradient = |this: &mut Self| {
            let result = this.temporary(tokens * inputs * dtype.bytes(), "aten.mm");
            this.matmul(
                "aten.mm",
                MatmulShape { m: tokens, n: inputs, k: outputs },
                dtype,
                MatmulLayout::DataGradient,
                dispatch,
            );
            result
        };
        let weight_gradient = |this: &mut Self| {
            let result = this.temporary(outputs * inputs * dtype.bytes(), "aten.mm");
            this.matmul(
                "aten.mm",
                MatmulShape { m: outputs, n: inputs, k: tokens },
                dtype,
                MatmulLayout::WeightGradient,
                dispatch,
            );
            result
        };
        let hooked = self.hooks_modules();
        let (weight, result) = if has_bias || hooked {
            let result = input_gradient(self);
            (weight_gradient(self), result)
        } else {
            let weight = weight_gradient(self);
            (weight, input_gradient(self))
        };
        // The bias's gradient is summed when the node has run: under checkpointing its saved input has gone by then. A function
        // in Python holds it to its end.
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed && !hooked {
            self.let_go_of_saved(frame, index);
        }
        let bias = has_bias.then(|| {
            let sum = self.sum_rows(tokens, outputs, dtype);
            self.upcast(frame.params.index(op.params[1]), sum, dtype)
        });
        if checkpointed && !hooked {
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.let_go(frame, index, gradient);
        }
        let result = Gradient { storage: result, view: !hooked };
        let weight_param = frame.params.index(op.params[0]);
        // Which of the two gradients autograd passes on first depends on which view was made last in forward.
        if hooked {
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
    pub(super) fn store_weight(&mut self, param: usize, weight: Storage, dtype: DType) {
        let (made, cast) = self.upcast(param, weight, dtype);
        if cast == dtype {
            self.store_view(param, made, cast);
        } else {
            self.store_leaf(param, made, cast);
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
    fn attention(&mut self, node: Node<'_>, window: Option<u64>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
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
}
