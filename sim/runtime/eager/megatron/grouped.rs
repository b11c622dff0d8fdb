//! Experts of a rank in one call (`TEGroupedMLP`, `core/transformer/moe/experts.py`, 0.16.1; Transformer Engine 2.9,
//! `module/grouped_linear.py`): each expert's matrix times its rows, on four streams of cuBLAS with a workspace each.

mod fp8;

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use super::expert_sizes::Sizes;
use super::left::Left;
use crate::model::graph::{Graph, Op};
use crate::model::megatron::experts::RoutedOp;
use crate::program::{DType, Dispatch, Grouping, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

/// Bytes of a number that is clamped; of its mask a number takes one.
const CLAMPED: u64 = 2;

impl Eager {
    /// One call of the matmuls of all experts, on their streams; the host launches each.
    pub(super) fn grouped_matmul(&mut self, sizes: &Sizes, layout: MatmulLayout, dispatch: Dispatch) {
        let &Sizes { inputs, outputs, local, rows, .. } = sizes;
        let dtype = sizes.fp8.map_or(sizes.dtype, |_| DType::Fp8);
        let (groups, kernels) = (local, Grouping::Streams);
        let work = Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, kernels };
        self.launch("te.general_grouped_gemm", work, dispatch);
        self.program.host(Dispatch::GroupedMatmul, local.saturating_sub(1) as u32);
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
        if let Some(fp8) = sizes.fp8 {
            return self.fp8_grouped_linear(op, &sizes, fp8, frame, results);
        }
        let out = self.storage(sizes.rows * sizes.outputs * sizes.dtype.bytes(), "te.general_grouped_gemm");
        self.grouped_matmul(&sizes, MatmulLayout::Forward, self.settings.forward);
        frame.slots[op.outputs[0]] = Some(out);
        let saved = [self.retain(Self::value(frame, op.inputs[0]))];
        self.keep(frame, results, &saved);
    }

    pub(super) fn grouped_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: RoutedOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let sizes = Sizes::of(graph, op, kind);
        if let Some(fp8) = sizes.fp8 {
            return self.fp8_grouped_linear_backward(node, &sizes, fp8, frame, gradient);
        }
        let dispatch = self.settings.backward;
        let result = self.temporary(sizes.rows * sizes.inputs * sizes.dtype.bytes(), "te.general_grouped_gemm");
        self.grouped_matmul(&sizes, MatmulLayout::DataGradient, dispatch);
        // With fused accumulation these are stand-ins, but every expert's is taken.
        let (of_weights, of_biases) = op.params.split_at(sizes.local as usize);
        let weights: Vec<Storage> =
            of_weights.iter().map(|_| self.temporary(sizes.weight(), "te.general_grouped_gemm")).collect();
        let read = frame.saved[Self::saved(frame, index).0];
        if !self.leave_for_later(Left::Grouped(sizes), &[read, gradient]) {
            self.grouped_matmul(&sizes, self.weight_layout(), dispatch);
        }
        // The matmul's epilogue leaves the gradients of biases.
        let width = sizes.outputs * sizes.dtype.bytes();
        let biases: Vec<Storage> = of_biases.iter().map(|_| self.temporary(width, "te.general_grouped_gemm")).collect();
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        for (&param, bias) in of_biases.iter().zip(biases) {
            self.store_leaf(frame.params.index(param), bias, sizes.dtype);
        }
        self.store_experts(of_weights, weights, sizes.dtype, frame);
    }

    /// The gradients of experts' weights arrive.
    fn store_experts(&mut self, params: &[usize], weights: Vec<Storage>, dtype: DType, frame: &mut Frame) {
        let fused = self.fuses_accumulation();
        for (&param, weight) in params.iter().zip(weights) {
            let param = frame.params.index(param);
            if fused {
                let bytes = self.bytes(weight);
                self.let_go_of_stand_in(weight);
                if !self.left_for(param) {
                    self.store_fused(param, bytes, dtype);
                }
            } else {
                self.store_leaf(param, weight, dtype);
            }
        }
    }

    /// Each expert's rows, its bias times their weights, the sum; all sums side by side.
    pub(super) fn add_biases(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (value, experts) = (&graph.values[op.outputs[0]], op.params.len() as u64);
        let (bytes, dispatch) = (value.bytes(), self.settings.forward);
        let (each, elements) = (bytes / experts, value.elements / experts);
        let mut sums = vec![];
        for _ in 0..experts {
            let product = self.made_strided("aten.mul", each, elements, dispatch);
            sums.push(self.made("aten.add", each, 2 * each, dispatch));
            self.release(product);
        }
        let out = self.made("aten.cat", bytes, bytes, dispatch);
        sums.into_iter().for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        let saved = [self.retain(Self::value(frame, op.inputs[1]))];
        self.keep(frame, results, &saved);
    }

    pub(super) fn add_biases_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (value, weights) = (&graph.values[op.inputs[0]], &graph.values[op.inputs[1]]);
        let experts = op.params.len() as u64;
        let (each, width) = (value.bytes() / experts, graph.params[op.params[0]].elements() * value.dtype.bytes());
        let elements = value.elements / experts;
        let mut parts = vec![];
        for &param in &op.params {
            // Of the product: both gradients, each summed over the other's axis.
            let wide = self.strided_gradient("aten.mul", each, elements);
            let bias = self.pointwise_gradient("aten.sum", width, each);
            self.release(wide);
            let wide = self.strided_gradient("aten.mul", each, elements);
            parts.push(self.pointwise_gradient("aten.sum", weights.bytes() / experts, each));
            self.release(wide);
            self.store_leaf(frame.params.index(param), bias, value.dtype);
        }
        let of_rows = self.pointwise_gradient("aten.cat", value.bytes(), value.bytes());
        let of_weights = self.pointwise_gradient("aten.cat", weights.bytes(), weights.bytes());
        parts.into_iter().for_each(|storage| self.release(storage));
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], of_rows.into());
        self.accumulate(frame, op.inputs[1], of_weights.into());
    }

    /// `torch.tensor(number, device="cuda")`: copied from memory that is not pinned, so the host waits until the stream is empty
    /// (`memcpy_and_sync`, `aten/src/ATen/native/cuda/Copy.cu`).
    fn number_from_host(&mut self, dtype: DType, dispatch: Dispatch) -> Storage {
        let number = self.storage(dtype.bytes(), "aten._to_copy");
        let copy = Work::HostCopy { bytes: Bytes(dtype.bytes()), to_host: false };
        self.program.launch(self.stream, "aten._to_copy", copy, dispatch);
        self.program.wait_for_host(self.stream);
        number
    }

    /// One kernel each way, of a gated SiLU or of a squared ReLU; backward also makes the gradient of the weights of rows. Where halves are clamped, the kernel reads and
    /// saves a copy that is put together of them, and what they were clamped from is saved as well; the offset of the second half is
    /// made anew from a number of Python's (`weighted_bias_quick_geglu_impl`, `core/fusions/fused_bias_geglu.py`).
    pub(super) fn weigh_rows(
        &mut self,
        (graph, op): (&Graph, &Op),
        (gated, clamped): (bool, bool),
        frame: &mut Frame,
        results: Results,
    ) {
        let (read, bytes) = (graph.values[op.inputs[0]].bytes(), graph.values[op.outputs[0]].bytes());
        let mut saved: Vec<Storage> = [0, 1].map(|at| self.retain(Self::value(frame, op.inputs[at]))).to_vec();
        if clamped {
            let dispatch = self.settings.forward;
            let elements = graph.values[op.inputs[0]].elements / 2;
            let halves = [0; 2].map(|_| self.made_strided("aten.clamp", read / 2, elements, dispatch));
            saved.push(self.made("aten.cat", read, read, dispatch));
            halves.into_iter().for_each(|half| self.release(half));
            saved.push(self.number_from_host(graph.values[op.inputs[0]].dtype, dispatch));
        }
        let name = if gated { "triton_weighted_swiglu" } else { "triton_weighted_squared_relu" };
        let out = self.made(name, bytes, read, Dispatch::Compiled);
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &saved);
    }

    pub(super) fn weigh_rows_backward(
        &mut self,
        node: Node<'_>,
        (gated, clamped): (bool, bool),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        const NAME: &str = "triton_weighted_swiglu_backward";
        let [bytes, weights] = [0, 1].map(|at| graph.values[op.inputs[at]].bytes());
        let out = graph.values[op.outputs[0]].bytes();
        let rows = self.temporary(bytes, NAME);
        let of_weights = self.temporary(weights, NAME);
        let read = bytes + out + weights;
        if gated {
            // Two kernels, each of which reads both: rows side by side are no sum over rows, so inductor does not fuse them.
            self.pointwise(NAME, MemoryKind::Elementwise, read, bytes, Dispatch::Compiled);
            self.pointwise("triton_weighted_swiglu_sum", MemoryKind::Elementwise, read, weights, Dispatch::Compiled);
        } else {
            let name = "triton_weighted_squared_relu_backward";
            self.pointwise(name, MemoryKind::Elementwise, read, bytes + weights, Dispatch::Compiled);
        }
        let rows = if clamped { self.clamped_gradient(rows, bytes) } else { rows };
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], rows.into());
        self.accumulate(frame, op.inputs[1], of_weights.into());
    }

    /// The gradient of what halves were clamped from: each half's where it was inside, and both side by side. The gate has an upper
    /// bound, the other half two (`clamp_backward`, `tools/autograd/FunctionsManual.cpp`).
    fn clamped_gradient(&mut self, of_copy: Storage, bytes: u64) -> Storage {
        let half = bytes / 2;
        let mask = half / CLAMPED;
        let inside = self.strided_gradient("aten.le", mask, mask);
        let of_gate = self.strided_gradient("aten.where", half, mask);
        self.release(inside);
        let bounds = ["aten.ge", "aten.le"].map(|name| self.strided_gradient(name, mask, mask));
        let both = self.pointwise_gradient("aten.logical_and", mask, 2 * mask);
        let of_linear = self.strided_gradient("aten.where", half, mask);
        bounds.into_iter().chain([both, of_copy]).for_each(|storage| self.release(storage));
        let made = self.pointwise_gradient("aten.cat", bytes, bytes);
        [of_gate, of_linear].into_iter().for_each(|storage| self.release(storage));
        made
    }
}
