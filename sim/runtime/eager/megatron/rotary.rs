//! Queries, keys and values out of one product, and rotary embeddings (`megatron/core/transformer/attention.py`,
//! `core/models/common/embeddings/rope_utils.py`).
//!
//! Unfused, cosines and sines are made anew from the angles, `[S, 1, 1, R]` in fp32, at every use.

use super::super::frame::{Node, Results};
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{DType, MemoryKind};

impl Eager {
    pub(super) fn split_qkv(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let mixed = Self::value(frame, op.inputs[0]);
        let query = &graph.values[op.outputs[0]];
        let first = if graph.dims.n > graph.dims.k {
            let copy = self.storage(query.bytes(), "aten.clone");
            self.strided("aten.clone", query.elements, self.settings.forward);
            copy
        } else {
            self.retain(mixed)
        };
        frame.slots[op.outputs[0]] = Some(first);
        for &value in &op.outputs[1..] {
            frame.slots[value] = Some(self.retain(mixed));
        }
        self.keep(frame, results, &[]);
    }

    /// The parts' gradients side by side.
    pub(super) fn split_qkv_backward(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, gradient: Storage) {
        let bytes = graph.values[op.inputs[0]].bytes();
        let whole = self.temporary(bytes, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        self.release(gradient);
        for &part in &op.outputs[1..] {
            if let Some(Gradient { storage, .. }) = frame.gradients[part].take() {
                self.release(storage);
            }
        }
        self.accumulate(frame, op.inputs[0], whole.into());
    }

    pub(super) fn rotate_heads(&mut self, graph: &Graph, op: &Op, fused: bool, frame: &mut Frame, results: Results) {
        let (value, d, dispatch) = (&graph.values[op.outputs[0]], graph.dims, self.settings.forward);
        let bytes = value.bytes();
        if fused {
            let out = self.made("fused_rope", bytes, bytes, dispatch);
            frame.slots[op.outputs[0]] = Some(out);
            return self.keep(frame, results, &[]);
        }
        let turned = bytes / d.h * d.r;
        let (wide, narrow) = (d.s * d.r * DType::Fp32.bytes(), d.s * d.r * value.dtype.bytes());
        let angles = ["aten.cos", "aten.sin"].map(|name| {
            let function = self.made(name, wide, wide, dispatch);
            let scaled = self.made("aten.mul", wide, wide, dispatch);
            self.release(function);
            let cast = self.made("aten._to_copy", narrow, wide, dispatch);
            self.release(scaled);
            cast
        });
        let elements = turned / value.dtype.bytes();
        let cosine = self.made_strided("aten.mul", turned, elements, dispatch);
        let negative = self.made_strided("aten.neg", turned / 2, elements / 2, dispatch);
        let half = self.made("aten.cat", turned, turned, dispatch);
        self.release(negative);
        let sine = self.made_strided("aten.mul", turned, elements, dispatch);
        self.release(half);
        let sum = self.made("aten.add", turned, 2 * turned, dispatch);
        self.release(cosine);
        self.release(sine);
        let out = self.made("aten.cat", bytes, bytes, dispatch);
        self.release(sum);
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &angles);
    }

    pub(super) fn rotate_heads_backward(&mut self, node: Node<'_>, fused: bool, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let bytes = graph.values[op.outputs[0]].bytes();
        if fused {
            let result = self.pointwise_gradient("fused_rope_backward", bytes, bytes);
            self.release(gradient);
            return self.accumulate(frame, op.inputs[0], result.into());
        }
        let turned = bytes / graph.dims.h * graph.dims.r;
        let elements = turned / graph.values[op.outputs[0]].dtype.bytes();
        let [cosines, sines] = Self::saved_by(frame, index);
        let sine = self.strided_gradient("aten.mul", turned, elements);
        self.release(sines);
        let negative = self.strided_gradient("aten.neg", turned / 2, elements / 2);
        let first = self.pointwise_gradient("aten.cat", turned, turned);
        self.release(sine);
        self.release(negative);
        let second = self.strided_gradient("aten.mul", turned, elements);
        self.release(cosines);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * turned, turned, self.settings.backward);
        self.release(second);
        // What is not rotated gives zeros around an empty part; the rotated part is added to them.
        let result = self.pointwise_gradient("aten.slice_backward", bytes, 0);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        self.release(gradient);
        self.release(first);
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
