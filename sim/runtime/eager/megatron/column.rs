//! Transformer Engine's `Linear` without a norm before it (`transformer_engine/pytorch/module/linear.py`, 2.9): split on its
//! rows, or whole on every rank.
//!
//! Its input is kept as it is and gathered again in backward, overlapped with the gradient of the input; that is reduced
//! and scattered, overlapped with the gradient of the weight.

use super::super::frame::{Node, Results};
use super::super::shape::MatmulShape;
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use super::products::Sizes;
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::{MegatronOp, Reads};
use crate::program::{Collective, MatmulLayout};

/// What a linear without a norm reads.
pub(super) fn reads(op: &Op) -> Reads {
    let OpKind::Megatron(MegatronOp::ColumnLinear { reads, .. }) = op.kind else {
        unreachable!("called for linears without a norm")
    };
    reads
}

/// What its backward has made: the weight's gradient, unless its matmul has added it to the main gradients; the input's
/// gradient, whole, and the rank's part of it, which are one where nothing is gathered.
pub(super) struct Made {
    pub(super) weight: Option<Storage>,
    pub(super) whole: Storage,
    pub(super) part: Storage,
}

impl Eager {
    pub(super) fn column_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let (sizes, reads) = (Sizes::of(graph, op, kind), reads(op));
        if let Some(fp8) = sizes.fp8 {
            return self.fp8_column_linear(graph, op, sizes, fp8, frame, results);
        }
        let whole = (reads == Reads::Gathered).then(|| self.gathered(sizes.read(), sizes.dtype));
        let out = self.storage(sizes.made(), "te.generic_gemm");
        let shape = MatmulShape { m: sizes.tokens, n: sizes.outputs, k: sizes.inputs };
        self.engine_matmul(shape, sizes.dtype, MatmulLayout::Forward, self.settings.forward);
        whole.into_iter().for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        let input = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[input]);
    }

    pub(super) fn column_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let (sizes, reads) = (Sizes::of(graph, op, kind), reads(op));
        if let Some(fp8) = sizes.fp8 {
            return self.fp8_column_linear_backward(node, sizes, fp8, frame, gradient);
        }
        let (dtype, dispatch) = (sizes.dtype, self.settings.backward);
        let gathers = reads == Reads::Gathered;
        let whole = gathers.then(|| self.temporary(sizes.read(), "all_gather_into_tensor"));
        if gathers {
            self.begin_exchange(Collective::AllGather, sizes.read(), dtype);
        }
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        let shape = MatmulShape { m: sizes.tokens, n: sizes.inputs, k: sizes.outputs };
        self.engine_matmul(shape, dtype, MatmulLayout::DataGradient, dispatch);
        let part = gathers.then(|| {
            self.end_exchange();
            let part = self.temporary(graph.values[op.inputs[0]].bytes(), "reduce_scatter_tensor");
            self.begin_exchange(Collective::ReduceScatter, sizes.read(), dtype);
            part
        });
        if reads == Reads::Copied {
            self.begin_exchange(Collective::AllReduce, sizes.read(), dtype);
        }
        let input = whole.unwrap_or(frame.saved[Self::saved(frame, index).0]);
        let weight = self.engine_weight_gradient(sizes, dispatch, &[input, gradient]);
        whole.into_iter().for_each(|storage| self.release(storage));
        let made = Made { weight, whole: result, part: part.unwrap_or(result) };
        self.end_column_backward(node, sizes, frame, gradient, made);
    }

    /// When what was exchanged during the weight's gradient is there: of the input's gradient, whole, the rank's part is left, and
    /// both gradients go where they belong.
    pub(super) fn end_column_backward(
        &mut self,
        node: Node<'_>,
        sizes: Sizes,
        frame: &mut Frame,
        gradient: Storage,
        Made { weight, whole, part }: Made,
    ) {
        let Node { op, index, .. } = node;
        let reads = reads(op);
        if reads != Reads::Own {
            self.end_exchange();
        }
        if reads == Reads::Gathered {
            self.release(whole);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], Gradient { storage: part, view: true });
        self.store_engine_weight(frame.params.index(op.params[0]), weight, sizes);
    }
}
