//! The shape of an attention operator, and its backward.

use super::accumulator::rows;
use super::gradients::round_up;
use super::{COMPUTE, Eager, Storage};
use crate::model::graph::{Graph, Op, OpKind};
use crate::program::{AttentionShape, DType, Dispatch, Work};

/// Heads of the keys an attention operator is given: those of the queries where they were copied to each.
pub(super) fn kv_heads(graph: &Graph, op: &Op) -> u64 {
    let d = graph.dims;
    graph.values[op.inputs[1]].elements / (d.b * d.s * d.h)
}

/// The shape of an attention operator. Where values are narrower than keys, both products do the work of a head between.
pub(in crate::runtime) fn attention_shape(graph: &Graph, op: &Op, window: Option<u64>) -> AttentionShape {
    let d = graph.dims;
    AttentionShape {
        batch: d.b,
        heads: d.n,
        kv_heads: kv_heads(graph, op),
        queries: d.s,
        keys: d.s,
        head_dim: if d.latent.0 > 0 { (d.h + d.latent.0) / 2 } else { d.h },
        // A bias may hide anything, so the kernel looks at every pair.
        causal: graph.causal && op.inputs.len() == 3,
        window,
        squares: d.documents.map(|documents| documents.squares),
    }
}

impl Eager {
    /// Whether attention runs the memory-efficient kernel: flash attention has no fp32 and takes no bias tensor.
    pub(super) fn uses_efficient(&self, graph: &Graph, op: &Op) -> bool {
        let OpKind::Attention { bias, .. } = op.kind else { return false };
        op.inputs.len() > 3 || (bias && self.settings.bias_tensor) || graph.values[op.inputs[0]].dtype == DType::Fp32
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
        let row_sum = d.n * rows(d) * 4;
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
}
