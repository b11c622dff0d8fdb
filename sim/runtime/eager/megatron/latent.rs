//! Latent attention between its projections (`core/transformer/multi_latent_attention.py`, `rope_utils.py`,
//! `core/fusions/fused_mla_yarn_rope_apply.py`, 0.16.1).

use super::super::frame::{Node, Results};
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::LatentOp;
use crate::program::{Collective, DType, MemoryKind};

impl Eager {
    pub(super) fn latent(&mut self, graph: &Graph, op: &Op, kind: LatentOp, frame: &mut Frame, results: Results) {
        let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let (read, bytes, dispatch) = (input.bytes(), out.bytes(), self.settings.forward);
        let mut saved = vec![];
        let made = match kind {
            LatentOp::GatherKey if graph.dims.tensor.sequence => {
                let part = self.made("aten.clone", read, read, dispatch);
                let whole = self.storage(bytes, "all_gather_into_tensor");
                self.exchange_now(Collective::AllGather, bytes, out.dtype);
                self.release(part);
                whole
            }
            LatentOp::GatherKey | LatentOp::TurnQueries => {
                if kind == LatentOp::TurnQueries {
                    self.pointwise("fused_mla_rope", MemoryKind::Elementwise, bytes, bytes, dispatch);
                }
                self.retain(Self::value(frame, op.inputs[0]))
            }
            LatentOp::Rotate => {
                let (made, angles) = self.turned(graph, bytes, out.dtype);
                saved.extend(angles);
                made
            }
            LatentOp::Join => self.made("aten.cat", bytes, bytes, dispatch),
            LatentOp::Copy => self.made("aten.clone", bytes, bytes, dispatch),
            LatentOp::TurnKeys => {
                let values = self.storage(graph.values[op.outputs[1]].bytes(), "fused_mla_rope");
                frame.slots[op.outputs[1]] = Some(values);
                self.made("fused_mla_rope", bytes, read, dispatch)
            }
        };
        frame.slots[op.outputs[0]] = Some(made);
        self.keep(frame, results, &saved);
    }

    /// Heads turned by angles, and the cosines and sines for backward.
    fn turned(&mut self, graph: &Graph, bytes: u64, dtype: DType) -> (Storage, [Storage; 2]) {
        let (d, dispatch) = (graph.dims, self.settings.forward);
        let (wide, narrow) = (d.s * d.r * DType::Fp32.bytes(), d.s * d.r * dtype.bytes());
        let apart = self.made("aten.cat", bytes, bytes, dispatch);
        let angles = ["aten.cos", "aten.sin"].map(|name| {
            let function = self.made(name, wide, wide, dispatch);
            let scaled = self.made("aten.mul", wide, wide, dispatch);
            self.release(function);
            let cast = self.made("aten._to_copy", narrow, wide, dispatch);
            self.release(scaled);
            cast
        });
        let cosine = self.made("aten.mul", bytes, bytes, dispatch);
        let negative = self.made("aten.neg", bytes / 2, bytes / 2, dispatch);
        let half = self.made("aten.cat", bytes, bytes, dispatch);
        self.release(negative);
        let sine = self.made("aten.mul", bytes, bytes, dispatch);
        self.release(half);
        let sum = self.made("aten.add", bytes, 2 * bytes, dispatch);
        [cosine, sine, apart].into_iter().for_each(|storage| self.release(storage));
        // Behind it stands what is not rotated, of which there is nothing.
        let out = self.made("aten.cat", bytes, bytes, dispatch);
        self.release(sum);
        (out, angles)
    }

    pub(super) fn latent_backward(&mut self, node: Node<'_>, kind: LatentOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let (bytes, read) = (input.bytes(), out.bytes());
        let result = match kind {
            LatentOp::GatherKey if graph.dims.tensor.sequence => {
                let part = self.temporary(bytes, "reduce_scatter_tensor");
                self.exchange_now(Collective::ReduceScatter, read, out.dtype);
                part
            }
            LatentOp::Rotate => self.turned_back(frame, index, read),
            LatentOp::Join => {
                // Views of the gradient; one part for all heads is summed over them.
                let other = &graph.values[op.inputs[1]];
                let each = read - bytes;
                let second = if other.bytes() < each {
                    self.pointwise_gradient("aten.sum", other.bytes(), each)
                } else {
                    self.retain(gradient)
                };
                self.accumulate(frame, op.inputs[1], Gradient { storage: second, view: true });
                self.retain(gradient)
            }
            LatentOp::TurnKeys => {
                let keys = self.pointwise_gradient("fused_mla_rope_backward", bytes, read);
                let shared = self.temporary(graph.values[op.inputs[1]].bytes(), "fused_mla_rope_backward");
                if let Some(values) = frame.gradients[op.outputs[1]].take() {
                    self.release(values.storage);
                }
                self.accumulate(frame, op.inputs[1], shared.into());
                keys
            }
            LatentOp::TurnQueries => {
                let dispatch = self.settings.backward;
                self.pointwise("fused_mla_rope_backward", MemoryKind::Elementwise, read, read, dispatch);
                self.retain(gradient)
            }
            LatentOp::GatherKey | LatentOp::Copy => self.retain(gradient),
        };
        if kind == LatentOp::Rotate {
            self.release(gradient);
        } else {
            self.let_go(frame, index, gradient);
        }
        self.accumulate(frame, op.inputs[0], Gradient { storage: result, view: true });
    }

    fn turned_back(&mut self, frame: &Frame, index: usize, bytes: u64) -> Storage {
        let [cosines, sines] = Self::saved_by(frame, index);
        let sine = self.pointwise_gradient("aten.mul", bytes, bytes);
        self.release(sines);
        let negative = self.pointwise_gradient("aten.neg", bytes / 2, bytes / 2);
        let first = self.pointwise_gradient("aten.cat", bytes, bytes);
        self.release(sine);
        self.release(negative);
        let second = self.pointwise_gradient("aten.mul", bytes, bytes);
        self.release(cosines);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        self.release(second);
        // Even and odd dimensions, each into zeros; their sum.
        let even = self.pointwise_gradient("aten.slice_backward", bytes, bytes / 2);
        let odd = self.pointwise_gradient("aten.slice_backward", bytes, bytes / 2);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        self.release(odd);
        self.release(first);
        even
    }
}
