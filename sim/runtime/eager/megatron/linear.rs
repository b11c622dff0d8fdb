//! `LinearWithGradAccumulationAndAsyncCommunication` (`megatron/core/tensor_parallel/layers.py`): a linear that
//! exchanges its input and its input's gradient with the tensor-parallel ranks, overlapped with the other matmul where it can.
//!
//! Under sequence parallelism the parts of the input are gathered into a buffer that all linears share (`"mpu"` of
//! `GlobalMemoryBuffer`); only the rank's own part is saved, and gathered once more in backward.

use super::super::frame::{Node, Results};
use super::super::framework::WeightGradients;
use super::super::main_gradients::WeightWork;
use super::super::shape::MatmulShape;
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::{Bias, MegatronOp, Reads};
use crate::program::{Category, Collective, DType, Dispatch, MatmulLayout, MemoryKind, Work};

/// What the rules read off the operator.
struct Linear {
    inputs: u64,
    outputs: u64,
    reads: Reads,
    bias: Bias,
    /// Tokens multiplied.
    tokens: u64,
    /// Bytes of the rank's part of the input.
    part: u64,
    dtype: DType,
}

impl Linear {
    fn of(graph: &Graph, op: &Op, kind: MegatronOp) -> Linear {
        let MegatronOp::Linear { inputs, outputs, reads, bias } = kind else { unreachable!("called for linears") };
        let (value, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        Linear { inputs, outputs, reads, bias, tokens: out.elements / outputs, part: value.bytes(), dtype: value.dtype }
    }

    /// Bytes of the input as multiplied.
    fn whole(&self) -> u64 {
        self.tokens * self.inputs * self.dtype.bytes()
    }
}

impl Eager {
    pub(super) fn parallel_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        if !graph.trains(op, 0) {
            return self.frozen_linear(graph, op, kind, frame, results);
        }
        let linear = Linear::of(graph, op, kind);
        let dispatch = self.settings.forward;
        if linear.reads == Reads::Gathered {
            self.exchange_now(Collective::AllGather, linear.whole(), linear.dtype);
        }
        let bytes = graph.values[op.outputs[0]].bytes();
        let mut out = self.storage(bytes, "aten.mm");
        let shape = MatmulShape { m: linear.tokens, n: linear.outputs, k: linear.inputs };
        self.matmul("aten.mm", shape, linear.dtype, MatmulLayout::Forward, dispatch);
        if linear.bias == Bias::Added {
            let sum = self.made("aten.add", bytes, bytes, dispatch);
            self.release(out);
            out = sum;
        }
        frame.slots[op.outputs[0]] = Some(out);
        let input = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[input]);
    }

    pub(super) fn parallel_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        if !graph.trains(op, 0) {
            return self.frozen_linear_backward(node, kind, frame, gradient);
        }
        let linear = Linear::of(graph, op, kind);
        let (dispatch, dtype) = (self.settings.backward, linear.dtype);
        let later = self.defers();
        if linear.reads == Reads::Gathered && !later {
            self.begin_exchange(Collective::AllGather, linear.whole(), dtype);
        }
        let whole = self.temporary(linear.whole(), "aten.mm");
        let shape = MatmulShape { m: linear.tokens, n: linear.inputs, k: linear.outputs };
        self.matmul("aten.mm", shape, dtype, MatmulLayout::DataGradient, dispatch);
        let mut part = None;
        match linear.reads {
            Reads::Own => {}
            Reads::Copied => self.begin_exchange(Collective::AllReduce, linear.whole(), dtype),
            Reads::Gathered => {
                if !later {
                    self.end_exchange();
                }
                part = Some(self.temporary(linear.part, "reduce_scatter_tensor"));
                self.begin_exchange(Collective::ReduceScatter, linear.whole(), dtype);
            }
        }
        // What would overlap with the weight's gradient is waited for at once where that comes later.
        if later && linear.reads != Reads::Own {
            self.end_exchange();
        }
        let made = MatmulShape { m: linear.outputs, n: linear.inputs, k: linear.tokens };
        let weight = if later { None } else { self.made_weight_gradient(made, dtype) };
        let bias = match linear.bias {
            Bias::Apart => None,
            Bias::Added => Some(self.sum_rows(linear.tokens, linear.outputs, dtype)),
            Bias::Epilogue => Some(self.temporary(linear.outputs * dtype.bytes(), "aten.mm")),
        };
        if !later && linear.reads != Reads::Own {
            self.end_exchange();
        }
        // The function returns: its frame held the gradient of all parts.
        let result = match part {
            Some(part) => {
                self.release(whole);
                part
            }
            None => whole,
        };
        let param = frame.params.index(op.params[0]);
        if later {
            let held = [frame.saved[Self::saved(frame, index).0], gradient];
            self.defer(&linear, param, held);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], Gradient::from(result));
        match weight {
            _ if later => {}
            Some(weight) => self.store_leaf(param, weight, dtype),
            None => self.store_fused(param, linear.outputs * linear.inputs * dtype.bytes(), dtype),
        }
        if let Some(bias) = bias {
            self.store_leaf(frame.params.index(op.params[1]), bias, dtype);
        }
    }

    /// The gradient of a weight of so many outputs and inputs, from so many tokens; none where the matmul adds it to the
    /// main gradients.
    pub(super) fn made_weight_gradient(&mut self, shape: MatmulShape, dtype: DType) -> Option<Storage> {
        let dispatch = self.settings.backward;
        if self.fuses_accumulation() {
            self.accumulating_matmul(shape, dtype, dispatch);
            return None;
        }
        let made = self.temporary(shape.m * shape.n * dtype.bytes(), "aten.mm");
        self.matmul("aten.mm", shape, dtype, MatmulLayout::WeightGradient, dispatch);
        Some(made)
    }

    /// The extension's matmul, which takes no workspace from PyTorch's allocator.
    fn accumulating_matmul(&mut self, MatmulShape { m, n, k }: MatmulShape, dtype: DType, dispatch: Dispatch) {
        let work = Work::Matmul { m, n, k, dtype, layout: self.weight_layout() };
        self.launch("wgrad_gemm_accum_fp32", work, dispatch);
    }

    /// Whether a backward in halves leaves weight gradients for later.
    fn defers(&self) -> bool {
        let weights = self.framework.megatron().map(|megatron| &megatron.weights);
        matches!(weights, Some(WeightGradients::Deferred(_)))
    }

    /// Leaves the weight's gradient for later, and holds what it needs.
    fn defer(&mut self, linear: &Linear, param: usize, held: [Storage; 2]) {
        let held = held.map(|storage| self.retain(storage));
        let shape = MatmulShape { m: linear.outputs, n: linear.inputs, k: linear.tokens };
        let gathers = linear.reads == Reads::Gathered;
        let owner = self.program.scope().owner();
        let work = WeightWork { param, shape, dtype: linear.dtype, gathers, held, owner };
        if let Some(WeightGradients::Deferred(list)) =
            self.framework.megatron_mut().map(|megatron| &mut megatron.weights)
        {
            list.push(work);
        }
    }

    /// Makes the weight gradients that a backward has left, in the order in which it met them, each added to the main
    /// gradients by its matmul. A part of a sequence is gathered first, and waited for.
    pub fn run_deferred(&mut self, list: Vec<WeightWork>) {
        let dispatch = self.settings.backward;
        for WeightWork { param, shape, dtype, gathers, held, owner } in list {
            let before = self.program.at_work(owner);
            if gathers {
                let MatmulShape { n: inputs, k: tokens, .. } = shape;
                self.exchange_now(Collective::AllGather, tokens * inputs * dtype.bytes(), dtype);
            }
            self.accumulating_matmul(shape, dtype, dispatch);
            self.gradient_arrived(param);
            for storage in held {
                self.release(storage);
            }
            self.program.enter(before);
        }
    }

    /// A weight's gradient that is in the main gradients already. One that is shared with another use still waits for
    /// the other's, with zeros in its own place.
    pub(super) fn store_fused(&mut self, param: usize, bytes: u64, dtype: DType) {
        if let Some(shared) = self.shared_as(param) {
            if shared.zeroed {
                self.pointwise("aten.zero_", MemoryKind::Copy, 0, bytes, self.settings.backward);
            }
            let zeros = self.borrowed();
            self.storages.counted[zeros.0 as usize].bytes = bytes;
            self.store_view(param, zeros, dtype);
        } else {
            self.gradient_arrived(param);
        }
    }

    /// All parts of the sequence.
    pub(super) fn gather_over_ranks(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let to = &graph.values[op.outputs[0]];
        let whole = if graph.dims.tensor.sequence {
            self.gathered(to.bytes(), to.dtype)
        } else {
            self.retain(Self::value(frame, op.inputs[0]))
        };
        frame.slots[op.outputs[0]] = Some(whole);
        self.keep(frame, results, &[]);
    }

    pub(super) fn gather_over_ranks_backward(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, gradient: Storage) {
        let (from, to) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let mut result = gradient;
        if graph.dims.tensor.sequence {
            result = self.temporary(from.bytes(), "reduce_scatter_tensor");
            self.exchange_now(Collective::ReduceScatter, to.bytes(), to.dtype);
            self.release(gradient);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// The sum over ranks of partial sums.
    pub(super) fn sum_over_ranks(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (from, to) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let out = if graph.dims.tensor.sequence {
            let part = self.storage(to.bytes(), "reduce_scatter_tensor");
            self.exchange_now(Collective::ReduceScatter, from.bytes(), from.dtype);
            part
        } else {
            self.exchange_now(Collective::AllReduce, from.bytes(), from.dtype);
            self.retain(Self::value(frame, op.inputs[0]))
        };
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &[]);
    }

    pub(super) fn sum_over_ranks_backward(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, gradient: Storage) {
        let value = &graph.values[op.inputs[0]];
        let mut result = gradient;
        if graph.dims.tensor.sequence {
            result = self.storage_as(value.bytes(), Category::BackwardTemporary, "all_gather_into_tensor");
            self.exchange_now(Collective::AllGather, value.bytes(), value.dtype);
            self.release(gradient);
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
