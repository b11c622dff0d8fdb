//! Experts of a rank in one call (`TEGroupedMLP`, `core/transformer/moe/experts.py`, 0.16.1; Transformer Engine 2.9,
//! `module/grouped_linear.py`): each expert's matrix times its rows, on four streams of cuBLAS with a workspace each.

use super::super::forward::Results;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::experts::RoutedOp;
use crate::program::{DType, Dispatch, MatmulLayout, MemoryKind, Work};

/// What the rules read off the operator.
struct Sizes {
    inputs: u64,
    outputs: u64,
    local: u64,
    rows: u64,
    dtype: DType,
}

impl Sizes {
    fn of(graph: &Graph, op: &Op, kind: RoutedOp) -> Sizes {
        let RoutedOp::Grouped { inputs, outputs, local } = kind else { unreachable!("called for grouped linears") };
        let value = &graph.values[op.inputs[0]];
        Sizes { inputs, outputs, local, rows: value.elements / inputs, dtype: value.dtype }
    }

    fn weight(&self) -> u64 {
        self.inputs * self.outputs * self.dtype.bytes()
    }
}

impl Eager {
    /// One call of the matmuls of all experts: the host launches each.
    fn grouped_matmul(&mut self, sizes: &Sizes, layout: MatmulLayout, dispatch: Dispatch) {
        let &Sizes { inputs, outputs, local, rows, dtype } = sizes;
        let work = Work::GroupedMatmul { groups: local, rows, inputs, outputs, dtype, layout };
        self.launch("te.general_grouped_gemm", work, dispatch);
        self.program.host(Dispatch::Extra, u32::try_from(local - 1).unwrap_or(u32::MAX));
    }

    pub(super) fn grouped_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: RoutedOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let sizes = Sizes::of(graph, op, kind);
        let out = self.storage(sizes.rows * sizes.outputs * sizes.dtype.bytes(), "te.general_grouped_gemm");
        self.grouped_matmul(&sizes, MatmulLayout::Forward, self.settings.forward);
        frame.slots[op.outputs[0]] = Some(out);
        let input = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[input]);
    }

    pub(super) fn grouped_linear_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        (index, kind): (usize, RoutedOp),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let sizes = Sizes::of(graph, op, kind);
        let dispatch = self.settings.backward;
        let result = self.temporary(sizes.rows * sizes.inputs * sizes.dtype.bytes(), "te.general_grouped_gemm");
        self.grouped_matmul(&sizes, MatmulLayout::DataGradient, dispatch);
        // With fused accumulation these are stand-ins, but every expert's is taken.
        let weights: Vec<Storage> =
            op.params.iter().map(|_| self.temporary(sizes.weight(), "te.general_grouped_gemm")).collect();
        self.grouped_matmul(&sizes, MatmulLayout::WeightGradient, dispatch);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        let fused = self.fuses_accumulation();
        for (&param, weight) in op.params.iter().zip(weights) {
            let param = frame.params.index(param);
            if fused {
                self.release(weight);
                self.gradient_arrived(param);
            } else {
                self.store_leaf(param, weight, sizes.dtype);
            }
        }
    }

    /// One kernel each way; backward also makes the gradient of the weights of rows.
    pub(super) fn weigh_rows(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        const NAME: &str = "triton_weighted_swiglu";
        let (read, bytes) = (graph.values[op.inputs[0]].bytes(), graph.values[op.outputs[0]].bytes());
        let out = self.made(NAME, bytes, read, Dispatch::Compiled);
        frame.slots[op.outputs[0]] = Some(out);
        let saved = [0, 1].map(|at| self.retain(Self::value(frame, op.inputs[at])));
        self.keep(frame, results, &saved);
    }

    pub(super) fn weigh_rows_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        index: usize,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        const NAME: &str = "triton_weighted_swiglu_backward";
        let [bytes, weights] = [0, 1].map(|at| graph.values[op.inputs[at]].bytes());
        let out = graph.values[op.outputs[0]].bytes();
        let rows = self.temporary(bytes, NAME);
        let of_weights = self.temporary(weights, NAME);
        let written = bytes + weights;
        self.pointwise(NAME, MemoryKind::Elementwise, bytes + out + weights, written, Dispatch::Compiled);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], rows.into());
        self.accumulate(frame, op.inputs[1], of_weights.into());
    }
}
