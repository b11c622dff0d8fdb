//! What other code has one kernel for, unfused: attention as matmuls and a softmax, dropout, parts of a value.
//!
//! Rules are those of `tools/autograd/derivatives.yaml`; orders of allocations and frees are recorded in
//! `tests/oracles/hf-transformers.json`.

use super::frame::Node;
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, OpKind};
use crate::program::{DType, MatmulLayout, MemoryKind};

impl Eager {
    /// `bmm`, forward: products of so many rows, columns and what is summed over, as one matmul of all their rows.
    pub(super) fn bmm(&mut self, graph: &Graph, op: &Op, rows: u64, columns: u64, inner: u64, frame: &mut Frame) {
        let value = &graph.values[op.outputs[0]];
        let output = self.storage(value.bytes(), "aten.bmm");
        frame.slots[op.outputs[0]] = Some(output);
        let dispatch = self.settings.forward;
        let shape = MatmulShape { m: graph.dims.b * graph.dims.n * rows, n: columns, k: inner };
        self.matmul("aten.bmm", shape, value.dtype, MatmulLayout::Forward, dispatch);
    }

    /// The gradient of the second, then that of the first.
    pub(super) fn bmm_backward(
        &mut self,
        node: Node<'_>,
        rows: u64,
        n: u64,
        k: u64,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let dispatch = self.settings.backward;
        let dtype = graph.values[op.outputs[0]].dtype;
        // What is summed over for the second is the rows of one matrix, of which there are B·N.
        let stacked = graph.dims.b * graph.dims.n;
        let m = stacked * rows;
        let mut make = |of: usize, shape, layout| {
            graph.needs(op.inputs[of]).then(|| {
                let made = self.temporary(graph.values[op.inputs[of]].bytes(), "aten.bmm");
                self.matmul("aten.bmm", shape, dtype, layout, dispatch);
                made
            })
        };
        let second = make(1, MatmulShape { m: stacked * k, n, k: rows }, MatmulLayout::WeightGradient);
        let first = make(0, MatmulShape { m, n: k, k: n }, MatmulLayout::DataGradient);
        self.let_go(frame, index, gradient);
        for (&value, made) in op.inputs.iter().zip([first, second]) {
            if let Some(storage) = made {
                self.accumulate(frame, value, Gradient { storage, view: true });
            }
        }
    }

    /// Softmax's backward has its product with what it received for a moment.
    pub(super) fn scores_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let bytes = graph.values[op.outputs[0]].bytes();
        let name = "aten._softmax_backward_data";
        let result = self.temporary(bytes, name);
        let product = self.pointwise_gradient("aten.mul", bytes, 2 * bytes);
        self.pointwise(name, MemoryKind::Softmax, 2 * bytes, bytes, self.settings.backward);
        self.release(product);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Dropout; returns its mask.
    pub(super) fn dropout(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) -> Storage {
        let value = &graph.values[op.outputs[0]];
        let name = "aten.native_dropout";
        let mask = self.storage(value.elements, name);
        let output = self.storage(value.bytes(), name);
        frame.slots[op.outputs[0]] = Some(output);
        let written = value.bytes() + value.elements;
        self.pointwise(name, MemoryKind::Elementwise, value.bytes(), written, self.settings.forward);
        mask
    }

    /// The gradient of what was not dropped.
    pub(super) fn dropout_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let value = &graph.values[op.outputs[0]];
        let read = value.bytes() + value.elements;
        let result = self.pointwise_gradient("aten.native_dropout_backward", value.bytes(), read);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Zeros of the whole with the part's gradient copied in.
    pub(super) fn slice_backward(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, gradient: Storage) {
        let (whole, part) = (graph.values[op.inputs[0]].bytes(), graph.values[op.outputs[0]].elements);
        let result = self.padded("aten.slice_backward", whole, part);
        self.release(gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// A bias of scores from a mask: two numbers, which it is filled with.
    pub(super) fn mask_bias(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let value = &graph.values[op.outputs[0]];
        let numbers = [0; 2].map(|_| self.storage(value.dtype.bytes(), "aten.where"));
        let bias = self.storage(value.bytes(), "aten.where");
        let read = graph.dims.s * graph.dims.s;
        self.pointwise("aten.where", MemoryKind::Elementwise, read, value.bytes(), self.settings.forward);
        for number in numbers {
            self.release(number);
        }
        frame.slots[op.outputs[0]] = Some(bias);
    }

    /// The memory-efficient kernel adds results up in fp32 outside registers where heads are wide.
    pub(super) fn accumulate_wide_heads(&mut self, graph: &Graph, op: &Op, efficient: bool) {
        let value = &graph.values[op.outputs[0]];
        if efficient && graph.dims.h > 128 && value.dtype != DType::Fp32 {
            let sums = self.storage(4 * value.elements, "aten._scaled_dot_product_efficient_attention");
            self.release(sums);
        }
    }

    /// Where flash attention's result was copied into another layout, its backward copies the gradient back.
    pub(super) fn gradient_by_heads(&mut self, graph: &Graph, op: &Op) -> Option<Storage> {
        let output = op.outputs[0];
        let copied = graph.ops.iter().any(|other| other.kind == OpKind::CONTIGUOUS && other.inputs[0] == output);
        copied.then(|| self.copy_of("aten.contiguous", graph.values[output].bytes(), true))
    }

    /// A mask or a table that all blocks read.
    pub fn body_tensor(&mut self, bytes: u64) -> Storage {
        let tensor = self.storage(bytes, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, bytes, bytes, self.settings.forward);
        tensor
    }

    /// What Python still names of a forward that has ended.
    pub fn locals(&mut self, frame: &mut Frame) -> Vec<Storage> {
        frame.slots.iter_mut().skip(1).filter_map(Option::take).collect()
    }
}
