//! Forward and backward of a module as nodes over tensors, before anything is decided.

use super::compiled::{Launch, TensorId};
use super::float8::{Casts, Float8};
use super::nodes::{Joint, Kind, Node};
use crate::model::graph::{Graph, Op, OpKind, ParamId};
use crate::model::operators::{Gradients, Of, Simple, Space};
use crate::program::{DType, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

/// Rows that one thread block of a column sum takes in its first pass (`torch/_inductor/choices.py`).
const ROWS_PER_PARTIAL: u64 = 128;

/// The nodes of a module, which [`refuses`](super::refuses) nothing of.
pub(super) fn derive(graph: &Graph, float8: Option<Float8>) -> Joint {
    let mut joint = Joint {
        tensors: vec![],
        forward: vec![],
        backward: vec![],
        output: 0,
        seed: 0,
        input_gradient: 0,
        gradients: vec![],
        masks: vec![],
        scales: vec![],
        float8,
        casts: Casts::default(),
        made: vec![],
        values: vec![usize::MAX; graph.values.len()],
        conjugate: None,
    };
    joint.values[0] = joint.value(graph, 0);
    for index in 0..graph.ops.len() {
        joint.forward_op(graph, index);
    }
    joint.output = joint.values[graph.output];
    joint.seed = joint.value(graph, graph.output);
    joint.backward_ops(graph);
    joint
}

/// What has no rules here is refused by name before anything is compiled.
fn refused(op: &Op) -> ! {
    let what = op.row().compiles.err().unwrap_or(op.row().kernel);
    unreachable!("{what} is refused when the plan is checked")
}

impl Joint {
    fn forward_op(&mut self, graph: &Graph, index: usize) {
        let op = &graph.ops[index];
        let reads: Vec<TensorId> = op.inputs.iter().map(|&value| self.values[value]).collect();
        if let OpKind::Split | OpKind::Slice | OpKind::Expand | OpKind::View = op.kind {
            for &part in &op.outputs {
                let view = self.value(graph, part);
                self.tensors[view].base = self.tensors[reads[0]].base;
                self.values[part] = view;
            }
            self.made.push(vec![]);
            return;
        }
        if let OpKind::Redistribute(how) = op.kind {
            let out = self.redistribute(graph, index, how, reads[0]);
            self.values[op.outputs[0]] = out;
            self.made.push(vec![out]);
            return;
        }
        let out = self.value(graph, op.outputs[0]);
        self.values[op.outputs[0]] = out;
        let space = self.tensors[reads.first().copied().unwrap_or(out)].elements;
        let mut made = vec![out];
        if self.swapped(graph, index).is_some() {
            self.float8_linear(graph, index, (reads[0], out));
            self.made.push(made);
            return;
        }
        let read: u64 = reads.iter().map(|&tensor| self.tensors[tensor].bytes).sum();
        let mut push = |name, kind, reads: &[TensorId], writes: &[TensorId]| {
            self.forward.push(Self::node(name, kind, reads, writes, space, index));
        };
        match op.kind {
            OpKind::Simple(simple) => self.simple(graph, index, simple, (reads, &mut made)),
            OpKind::Linear { inputs, outputs } => {
                let dtype = graph.values[op.inputs[0]].dtype;
                let (m, layout) = (graph.dims.tokens(), MatmulLayout::Forward);
                let work = Work::Matmul { m, n: outputs, k: inputs, dtype, layout };
                let name = if op.params.len() > 1 { "extern_kernels.addmm" } else { "extern_kernels.mm" };
                push(name, Kind::Extern(Launch::Matmul(work)), &reads, &[out]);
            }
            OpKind::Bmm { rows, columns, inner } => {
                let m = graph.dims.b * graph.dims.n * rows;
                let (dtype, layout) = (graph.values[op.outputs[0]].dtype, MatmulLayout::Forward);
                let work = Work::Matmul { m, n: columns, k: inner, dtype, layout };
                push("extern_kernels.bmm", Kind::Extern(Launch::Matmul(work)), &reads, &[out]);
            }
            OpKind::Dropout => {
                // What is dropped is drawn once: the mask is kept, never drawn again.
                let mask = self.tensor("mask", space, space);
                made.push(mask);
                let kind = Kind::Rows(MemoryKind::Elementwise);
                self.forward.push(Self::node("triton_dropout", kind, &reads, &[mask], space, index));
                let kind = Kind::Point(MemoryKind::Elementwise);
                let both = [reads[0], mask];
                self.forward.push(Self::node("triton_dropout", kind, &both, &[out], space, index));
            }
            OpKind::RmsNorm { rows } | OpKind::LayerNorm { rows } | OpKind::Softmax { rows } => {
                // LayerNorm has mean and deviation, softmax maximum and sum.
                let count = if matches!(op.kind, OpKind::RmsNorm { .. }) { 1 } else { 2 };
                let statistics = self.statistics(graph, index, (count, rows));
                made.extend_from_slice(&statistics);
                let reads: Vec<TensorId> = reads.iter().chain(&statistics).copied().collect();
                let kind = Kind::Point(MemoryKind::Norm);
                self.forward.push(Self::node("triton_norm", kind, &reads, &[out], space, index));
            }
            OpKind::RotateComplex { table } => {
                let kind = MemoryKind::Complex;
                let written = self.tensors[out].bytes;
                let work = Work::Memory { kind, read: Bytes(read + 8 * table), written: Bytes(written) };
                push("aten.mul", Kind::Extern(Launch::Library(work)), &reads, &[out]);
            }
            OpKind::Attention { window, .. } => {
                let name = attention_name(graph, op, false);
                for (bytes, elements) in attention_extras(graph, op) {
                    let extra = self.tensor(name, elements, bytes);
                    made.push(extra);
                }
                let kind = Kind::Extern(Launch::Attention { op: index, window, backward: false });
                self.forward.push(Self::node(name, kind, &reads, &made, space, index));
            }
            OpKind::Rotate(_) => {
                let kind = Kind::Point(MemoryKind::Elementwise);
                let node = Self::node("triton_rope", kind, &reads, &[out], space, index);
                self.forward.push(Node { elsewhere: true, ..node });
            }
            OpKind::MaskBias => push("triton_to_copy", Kind::Point(MemoryKind::Elementwise), &reads, &[out]),
            OpKind::Split | OpKind::Slice | OpKind::Expand | OpKind::View | OpKind::Redistribute(_) => {}
            OpKind::CastWeight
            | OpKind::RotaryRows
            | OpKind::Embedding
            | OpKind::Unpad { .. }
            | OpKind::Pad
            | OpKind::CrossEntropy { .. }
            | OpKind::FlashCrossEntropy
            | OpKind::CompiledCrossEntropy { .. }
            | OpKind::VocabularyLogProbs { .. }
            | OpKind::ChunkedLoss(_)
            | OpKind::Preference(_)
            | OpKind::FusedLinearCrossEntropy
            | OpKind::ParallelCrossEntropy
            | OpKind::Mamba2(_)
            | OpKind::GatedDelta(_)
            | OpKind::Experts(_)
            | OpKind::Megatron(_)
            | OpKind::InternLm(_)
            | OpKind::Nanotron(_) => refused(op),
        }
        self.made.push(made);
    }

    /// An operator of one kernel over memory: computed inside whatever reads it.
    fn simple(
        &mut self,
        graph: &Graph,
        index: usize,
        simple: &Simple,
        (reads, made): (Vec<TensorId>, &mut Vec<TensorId>),
    ) {
        let (fused, out) = (simple.fused, made[0]);
        let over = match fused.space {
            Space::Input => reads.first().copied().unwrap_or(out),
            Space::Output => out,
        };
        let space = self.tensors[over].elements;
        let node = |reads: &[TensorId], write| {
            Self::node(fused.forward, Kind::Point(fused.memory), reads, &[write], space, index)
        };
        self.forward.push(node(&reads, out));
        if fused.mask {
            let mask = self.tensor("mask", space, space);
            made.push(mask);
            self.masks.push(mask);
            // Where the matmul before has a bias, the mask is of the result.
            let of = if after_addmm(graph, &graph.ops[index]) { vec![out] } else { reads };
            self.forward.push(node(&of, mask));
        }
    }

    /// A norm's statistics; two norms of one value share them.
    fn statistics(&mut self, graph: &Graph, index: usize, (count, rows): (usize, u64)) -> Vec<TensorId> {
        let op = &graph.ops[index];
        let same = |other: &Op| other.kind == op.kind && other.inputs == op.inputs;
        if let Some(at) = graph.ops[..index].iter().position(same) {
            return self.made[at][1..].to_vec();
        }
        let made: Vec<TensorId> = (0..count).map(|_| self.tensor("statistics", rows, rows * 4)).collect();
        let input = self.values[op.inputs[0]];
        let space = self.tensors[input].elements;
        let kind = Kind::Rows(MemoryKind::Norm);
        self.forward.push(Self::node("triton_norm", kind, &[input], &made, space, index));
        made
    }

    fn backward_ops(&mut self, graph: &Graph) {
        let mut gradients: Vec<Option<TensorId>> = vec![None; graph.values.len()];
        gradients[graph.output] = Some(self.seed);
        for index in (0..graph.ops.len()).rev() {
            self.backward_op(graph, index, &mut gradients);
        }
        self.input_gradient = gradients[0].unwrap_or(self.seed);
    }

    fn backward_op(&mut self, graph: &Graph, index: usize, gradients: &mut [Option<TensorId>]) {
        let op = &graph.ops[index];
        if op.kind == OpKind::Split {
            let parts: Vec<TensorId> = op.outputs.iter().filter_map(|&part| gradients[part].take()).collect();
            let whole = self.value(graph, op.inputs[0]);
            self.push("triton_cat", Kind::Point(MemoryKind::Copy), &parts, &[whole], index);
            return self.add(graph, gradients, op.inputs[0], whole, index);
        }
        let Some(gradient) = gradients[op.outputs[0]].take() else { return };
        let inputs: Vec<TensorId> = op.inputs.iter().map(|&value| self.values[value]).collect();
        let point = || Kind::Point(MemoryKind::Elementwise);
        match op.kind {
            OpKind::Simple(simple) => self.simple_backward(graph, index, (simple, gradient), gradients),
            OpKind::Redistribute(how) => {
                let result = self.redistribute_backward(graph, index, how, gradient);
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::View => self.add(graph, gradients, op.inputs[0], gradient, index),
            OpKind::Slice => {
                let whole = self.value(graph, op.inputs[0]);
                self.push("triton_slice_backward", Kind::Point(MemoryKind::Copy), &[gradient], &[whole], index);
                self.add(graph, gradients, op.inputs[0], whole, index);
            }
            OpKind::Linear { inputs: width, outputs } => {
                let (tokens, dtype) = (graph.dims.tokens(), graph.values[op.inputs[0]].dtype);
                let matmul = |m, n, k, layout| Kind::Extern(Launch::Matmul(Work::Matmul { m, n, k, dtype, layout }));
                let weight = self.tensor("weight gradient", outputs * width, outputs * width * dtype.bytes());
                if self.swapped(graph, index).is_some() {
                    self.gradients.push((op.params[0], weight));
                    let result = self.value(graph, op.inputs[0]);
                    self.float8_linear_backward(graph, index, (gradient, inputs[0]), (weight, result));
                    return self.add(graph, gradients, op.inputs[0], result, index);
                }
                let kind = matmul(outputs, width, tokens, MatmulLayout::WeightGradient);
                self.push("extern_kernels.mm", kind, &[gradient, inputs[0]], &[weight], index);
                self.gradients.push((op.params[0], weight));
                let result = self.value(graph, op.inputs[0]);
                let kind = matmul(tokens, width, outputs, MatmulLayout::DataGradient);
                self.push("extern_kernels.mm", kind, &[gradient], &[result], index);
                if let Some(&bias) = op.params.get(1) {
                    self.column_sums(&[gradient], &[bias], (tokens, outputs, dtype), MemoryKind::Elementwise, index);
                }
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::RmsNorm { rows } | OpKind::LayerNorm { rows } => {
                let result = self.value(graph, op.inputs[0]);
                let mut reads = vec![gradient, inputs[0]];
                reads.extend_from_slice(&self.made[index][1..]);
                // Input and weight gradients are separate kernels here: streams with a row sum, and column sums.
                let (kind, value) = (MemoryKind::Norm, &graph.values[op.inputs[0]]);
                let sums = self.tensor("row sums", rows, rows * 4);
                self.push("triton_norm_backward", Kind::Rows(kind), &reads, &[sums], index);
                let with_sums: Vec<TensorId> = reads.iter().copied().chain([sums]).collect();
                self.push("triton_norm_backward", Kind::Point(kind), &with_sums, &[result], index);
                let columns = (rows, value.elements / rows, value.dtype);
                self.column_sums(&reads, &op.params, columns, MemoryKind::Elementwise, index);
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::Bmm { rows, columns, inner } => {
                let stacked = graph.dims.b * graph.dims.n;
                let dtype = graph.values[op.outputs[0]].dtype;
                let matmul = |m, n, k, layout| Kind::Extern(Launch::Matmul(Work::Matmul { m, n, k, dtype, layout }));
                let works = [
                    matmul(stacked * rows, inner, columns, MatmulLayout::DataGradient),
                    matmul(stacked * inner, columns, rows, MatmulLayout::WeightGradient),
                ];
                for (at, work) in works.into_iter().enumerate().rev() {
                    let result = self.value(graph, op.inputs[at]);
                    self.push("extern_kernels.bmm", work, &[gradient, inputs[1 - at]], &[result], index);
                    self.add(graph, gradients, op.inputs[at], result, index);
                }
            }
            OpKind::Softmax { rows } => {
                let reads = [gradient, self.values[op.outputs[0]]];
                let sums = self.tensor("row sums", rows, rows * 4);
                let kind = MemoryKind::Softmax;
                self.push("triton_softmax_backward", Kind::Rows(kind), &reads, &[sums], index);
                let result = self.value(graph, op.inputs[0]);
                let reads = [reads[0], reads[1], sums];
                self.push("triton_softmax_backward", Kind::Point(kind), &reads, &[result], index);
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::Dropout => {
                let mask = self.made[index][1];
                let result = self.value(graph, op.inputs[0]);
                self.push("triton_dropout_backward", point(), &[gradient, mask], &[result], index);
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::RotateComplex { table } => {
                let conjugate = match self.conjugate {
                    Some(conjugate) => conjugate,
                    None => {
                        let made = self.tensor("aten.clone", table, 8 * table);
                        let (kind, bytes) = (MemoryKind::Copy, Bytes(8 * table));
                        let work = Work::Memory { kind, read: bytes, written: bytes };
                        self.push("aten.clone", Kind::Extern(Launch::Library(work)), &[], &[made], index);
                        *self.conjugate.insert(made)
                    }
                };
                let result = self.value(graph, op.inputs[0]);
                let bytes = self.tensors[result].bytes;
                let (kind, read) = (MemoryKind::Complex, Bytes(bytes + 8 * table));
                let work = Work::Memory { kind, read, written: Bytes(bytes) };
                self.push("aten.mul", Kind::Extern(Launch::Library(work)), &[gradient, conjugate], &[result], index);
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::Attention { window, .. } => {
                let mut reads = vec![gradient];
                reads.extend_from_slice(&inputs);
                reads.extend_from_slice(&self.made[index]);
                let results: Vec<TensorId> = op.inputs.iter().take(3).map(|&value| self.value(graph, value)).collect();
                let kind = Kind::Extern(Launch::Attention { op: index, window, backward: true });
                self.push(attention_name(graph, op, true), kind, &reads, &results, index);
                for (&value, &result) in op.inputs.iter().zip(&results) {
                    self.add(graph, gradients, value, result, index);
                }
            }
            OpKind::Expand | OpKind::Rotate(_) => {
                let result = self.value(graph, op.inputs[0]);
                self.push("triton_to_copy", point(), &[gradient], &[result], index);
                if let (OpKind::Rotate(_), Some(node)) = (op.kind, self.backward.last_mut()) {
                    node.elsewhere = true;
                }
                self.add(graph, gradients, op.inputs[0], result, index);
            }
            OpKind::Split | OpKind::MaskBias => {}
            OpKind::CastWeight
            | OpKind::RotaryRows
            | OpKind::Embedding
            | OpKind::Unpad { .. }
            | OpKind::Pad
            | OpKind::CrossEntropy { .. }
            | OpKind::FlashCrossEntropy
            | OpKind::CompiledCrossEntropy { .. }
            | OpKind::VocabularyLogProbs { .. }
            | OpKind::ChunkedLoss(_)
            | OpKind::Preference(_)
            | OpKind::FusedLinearCrossEntropy
            | OpKind::ParallelCrossEntropy
            | OpKind::Mamba2(_)
            | OpKind::GatedDelta(_)
            | OpKind::Experts(_)
            | OpKind::Megatron(_)
            | OpKind::InternLm(_)
            | OpKind::Nanotron(_) => refused(op),
        }
    }

    fn simple_backward(
        &mut self,
        graph: &Graph,
        index: usize,
        (simple, gradient): (&Simple, TensorId),
        gradients: &mut [Option<TensorId>],
    ) {
        let op = &graph.ops[index];
        // A gradient of its own for an input, by a kernel that also reads these.
        let mut made = |this: &mut Self, input: usize, with: &[TensorId]| {
            let result = this.value(graph, op.inputs[input]);
            let reads: Vec<TensorId> = std::iter::once(gradient).chain(with.iter().copied()).collect();
            let kind = Kind::Point(MemoryKind::Elementwise);
            this.push(simple.fused.backward, kind, &reads, &[result], index);
            this.add(graph, gradients, op.inputs[input], result, index);
        };
        match simple.gradients {
            Gradients::Made(rules) => {
                let of = |input: usize| rules.iter().find(|rule| rule.of == input);
                for rule in (0..op.inputs.len()).filter_map(of) {
                    let tensor = |&kept: &Of| match (simple.fused.mask, kept) {
                        (true, _) => self.made[index][1],
                        (false, Of::Input(at)) => self.values[op.inputs[at]],
                        (false, Of::Output) => self.values[op.outputs[0]],
                    };
                    let with: Vec<TensorId> = rule.with.iter().map(tensor).collect();
                    made(self, rule.of, &with);
                }
            }
            Gradients::Handed => made(self, 0, &[]),
            Gradients::Parts => (0..op.inputs.len()).for_each(|input| made(self, input, &[])),
            Gradients::Shared => {
                for &operand in &op.inputs {
                    self.add(graph, gradients, operand, gradient, index);
                }
            }
            Gradients::Nothing => {}
        }
    }

    /// Sums over rows for parameters: partial sums in fp32, then one small kernel for each parameter.
    fn column_sums(
        &mut self,
        reads: &[TensorId],
        params: &[ParamId],
        (rows, width, dtype): (u64, u64, DType),
        kind: MemoryKind,
        op: usize,
    ) {
        let elements = rows.div_ceil(ROWS_PER_PARTIAL) * width;
        let partials: Vec<TensorId> =
            params.iter().map(|_| self.tensor("partial sums", elements, 4 * elements)).collect();
        self.push("triton_red_sum", Kind::Columns(kind), reads, &partials, op);
        for (&param, &partial) in params.iter().zip(&partials) {
            let sum = self.tensor("parameter gradient", width, width * dtype.bytes());
            self.push("triton_per_sum", Kind::Rows(MemoryKind::Elementwise), &[partial], &[sum], op);
            self.gradients.push((param, sum));
        }
    }
}

/// Whether a rectifier reads a matmul with a bias. Then its mask is computed again from its result, which the next matmul keeps;
/// behind one without a bias mask and result are both kept (`compile.json` and `hf-transformers.json` have a case of each).
pub(super) fn after_addmm(graph: &Graph, rectifier: &Op) -> bool {
    let input = rectifier.inputs[0];
    graph.ops.iter().any(|op| op.outputs.contains(&input) && op.params.len() > 1)
}

/// What attention makes beside its output, bytes and elements: log-sum-exp and random state.
fn attention_extras(graph: &Graph, op: &Op) -> [(u64, u64); 3] {
    let rows = graph.dims.tokens() * graph.dims.n;
    if efficient(graph, op) { [(8, 1), (8, 1), (rows * 4, rows)] } else { [(rows * 4, rows), (16, 2), (8, 1)] }
}

/// Whether the memory-efficient kernel runs: in fp32, or with a bias.
fn efficient(graph: &Graph, op: &Op) -> bool {
    op.inputs.len() > 3 || graph.values[op.inputs[0]].dtype == DType::Fp32
}

fn attention_name(graph: &Graph, op: &Op, backward: bool) -> &'static str {
    match (efficient(graph, op), backward) {
        (true, false) => "aten._scaled_dot_product_efficient_attention",
        (true, true) => "aten._scaled_dot_product_efficient_attention_backward",
        (false, false) => "aten._scaled_dot_product_flash_attention",
        (false, true) => "aten._scaled_dot_product_flash_attention_backward",
    }
}
