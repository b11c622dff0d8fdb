//! Transformer Engine's modules (`transformer_engine/pytorch/module/layernorm_linear.py`, `linear.py`,
//! `ops/basic/layer_norm.py`, 2.9), each one autograd function.
//!
//! What is gathered is a tensor of its own, given back as soon as the matmul has read it. Matmuls share one workspace for
//! good. The function's frame holds the gradient of all parts of the input until it returns.

use super::super::frame::{Node, Results};
use super::super::shape::MatmulShape;
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use super::left::Left;
use super::products::{Product, Sizes, statistics};
use crate::model::graph::{Graph, Op, Value};
use crate::model::megatron::{Bias, MegatronOp, Scatter};
use crate::program::{Collective, DType, Dispatch, MatmulLayout, MemoryKind, Work};

impl Eager {
    /// A matmul of Transformer Engine's: its workspace is taken for good.
    pub(super) fn engine_matmul(
        &mut self,
        MatmulShape { m, n, k }: MatmulShape,
        dtype: DType,
        layout: MatmulLayout,
        dispatch: Dispatch,
    ) {
        self.launch("te.generic_gemm", Work::Matmul { m, n, k, dtype, layout }, dispatch);
    }

    pub(super) fn engine_product(&mut self, Product { shape, dtype, layout, dispatch }: Product) {
        self.engine_matmul(shape, dtype, layout, dispatch);
    }

    /// A norm's statistics, and its result.
    pub(super) fn normalised(&mut self, value: &Value, rows: u64, statistics: usize) -> (Vec<Storage>, Storage) {
        const NAME: &str = "te.norm_fwd";
        let numbers = (0..statistics).map(|_| self.storage(rows * 4, NAME)).collect();
        let out = self.storage(value.bytes(), NAME);
        self.pointwise(NAME, MemoryKind::Norm, value.bytes(), value.bytes(), self.settings.forward);
        (numbers, out)
    }

    /// The gradients of a norm's input and of its parameters.
    pub(super) fn norm_gradients(&mut self, value: &Value, rows: u64, params: usize) -> (Storage, Vec<Storage>) {
        const NAME: &str = "te.norm_bwd";
        let input = self.temporary(value.bytes(), NAME);
        let width = value.bytes() / rows;
        let made = (0..params).map(|_| self.temporary(width, NAME)).collect();
        self.pointwise(NAME, MemoryKind::NormBackward, 2 * value.bytes(), value.bytes(), self.settings.backward);
        (input, made)
    }

    pub(super) fn engine_norm(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let value = &graph.values[op.inputs[0]];
        let rows = value.elements / graph.params[op.params[0]].rows;
        let given = Self::value(frame, op.inputs[0]);
        // A view of some heads of a product is copied side by side first.
        let input = if self.bytes(given) == value.bytes() {
            self.retain(given)
        } else {
            self.made("aten.clone", value.bytes(), value.bytes(), self.settings.forward)
        };
        let (numbers, out) = self.normalised(value, rows, statistics(op.params.len()));
        frame.slots[op.outputs[0]] = Some(out);
        // The result is a view, and a tensor that is none is made in its place (`make_viewless_tensor`).
        let one = self.storage(value.dtype.bytes(), "aten.empty");
        self.release(one);
        let mut saved = vec![input];
        saved.extend(numbers);
        self.keep(frame, results, &saved);
    }

    pub(super) fn engine_norm_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let value = &graph.values[op.inputs[0]];
        let rows = value.elements / graph.params[op.params[0]].rows;
        // A view of a wider gradient is copied side by side first.
        let copy = (self.bytes(gradient) > value.bytes()).then(|| {
            let dispatch = self.settings.backward;
            let copy = self.temporary(value.bytes(), "aten.clone");
            self.pointwise("aten.clone", MemoryKind::Copy, value.bytes(), value.bytes(), dispatch);
            copy
        });
        let (result, made) = self.norm_gradients(value, rows, op.params.len());
        copy.into_iter().for_each(|copy| self.release(copy));
        let (start, end) = Self::saved(frame, index);
        for at in start + 1..end {
            self.release(frame.saved[at]);
        }
        self.release(gradient);
        self.release(frame.saved[start]);
        self.accumulate(frame, op.inputs[0], Gradient { storage: result, view: true });
        for (at, storage) in made.into_iter().enumerate() {
            self.store_trained((graph, op), at, frame, (storage, value.dtype));
        }
    }

    pub(super) fn norm_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let MegatronOp::NormLinear { norms, fp8, .. } = kind else { unreachable!("called for norms before linears") };
        if !graph.trains(op, norms) {
            return self.frozen_norm_linear(graph, op, kind, frame, results);
        }
        if let Some(fp8) = fp8 {
            return self.fp8_norm_linear(graph, op, kind, fp8, frame, results);
        }
        let sizes = Sizes::of(graph, op, kind).in_pass(results);
        let value = &graph.values[op.inputs[0]];
        let rows = graph.dims.local_tokens();
        let (numbers, normed) = self.normalised(value, rows, statistics(norms));
        let gathered = (sizes.sequence && !sizes.overlap).then(|| self.gathered(sizes.read(), sizes.dtype));
        let out = self.storage(sizes.made(), "te.generic_gemm");
        let product = sizes.forward(self.settings.forward);
        if sizes.overlap {
            self.gather_overlapped(product, sizes.whole_input());
        } else {
            self.engine_product(product);
        }
        if let Some(gathered) = gathered {
            self.release(gathered);
        }
        frame.slots[op.outputs[0]] = Some(out);
        let mut saved = vec![self.retain(Self::value(frame, op.inputs[0])), normed];
        saved.extend(numbers);
        self.keep(frame, results, &saved);
    }

    pub(super) fn norm_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let MegatronOp::NormLinear { norms, bias, fp8, .. } = kind else {
            unreachable!("called for norms before linears")
        };
        if !graph.trains(op, norms) {
            return self.frozen_norm_linear_backward(node, kind, frame, gradient);
        }
        if let Some(fp8) = fp8 {
            return self.fp8_norm_linear_backward(node, kind, fp8, frame, gradient);
        }
        let sizes = Sizes::of(graph, op, kind);
        let (dtype, dispatch) = (sizes.dtype, self.settings.backward);
        let gathered =
            (sizes.sequence && !sizes.overlap).then(|| self.temporary(sizes.read(), "all_gather_into_tensor"));
        if sizes.sequence {
            self.begin_overlapped(sizes, Collective::AllGather, sizes.whole_input());
        }
        // Under overlap the gradient of all parts is in a buffer of the exchange.
        let whole = (!sizes.overlap).then(|| self.temporary(sizes.read(), "te.generic_gemm"));
        self.product_overlapped(sizes, sizes.data_gradient(dispatch));
        let value = &graph.values[op.inputs[0]];
        let mut part = None;
        if sizes.sequence {
            self.end_overlapped(sizes);
            part = (!sizes.overlap).then(|| self.temporary(value.bytes(), "reduce_scatter_tensor"));
            self.begin_overlapped(sizes, Collective::ReduceScatter, sizes.whole_input());
        }
        if sizes.splits && !sizes.sequence {
            self.begin_exchange(Collective::AllReduce, sizes.read(), dtype);
        }
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].to_vec();
        let weight = self.engine_weight_gradient(sizes, dispatch, &[gathered.unwrap_or(saved[1]), gradient]);
        let sum = (bias == Bias::Added).then(|| self.temporary(sizes.outputs * dtype.bytes(), "te.generic_gemm"));
        self.release(saved[1]);
        if let Some(gathered) = gathered {
            self.release(gathered);
        }
        if sizes.splits {
            self.end_overlapped(sizes);
        }
        let part = part.or_else(|| self.clone_out(sizes, value.bytes()));
        let (result, made) = self.norm_gradients(value, graph.dims.local_tokens(), norms);
        for &storage in part.iter().chain(&saved[2..]).chain(&whole).chain([&gradient, &saved[0]]) {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
        for (&param, storage) in op.params.iter().zip(made) {
            self.store_leaf(frame.params.index(param), storage, dtype);
        }
        if let Some(sum) = sum {
            self.store_leaf(frame.params.index(op.params[norms + 1]), sum, dtype);
        }
        self.store_engine_weight(frame.params.index(op.params[norms]), weight, sizes);
    }

    /// The weight's gradient, or none where the matmul adds it to the main gradients.
    /// `read`: what it is made of.
    pub(super) fn engine_weight_gradient(
        &mut self,
        sizes: Sizes,
        dispatch: Dispatch,
        read: &[Storage],
    ) -> Option<Storage> {
        let fused = self.fuses_accumulation();
        let shape = MatmulShape { m: sizes.outputs, n: sizes.inputs, k: sizes.tokens };
        if fused && self.leave_for_later(Left::Linear(shape, sizes.multiplied()), read) {
            return None;
        }
        let made = (!fused).then(|| self.temporary(sizes.weight(), "te.generic_gemm"));
        let product = Product { shape, dtype: sizes.multiplied(), layout: self.weight_layout(), dispatch };
        self.product_overlapped(sizes, product);
        made
    }

    pub(super) fn store_engine_weight(&mut self, param: usize, weight: Option<Storage>, sizes: Sizes) {
        self.on_the_default_stream(|eager| match weight {
            Some(weight) => eager.store_leaf(param, weight, sizes.dtype),
            None if eager.left_for(param) => {}
            None => eager.store_fused(param, sizes.weight(), sizes.dtype),
        });
    }

    pub(super) fn row_linear(&mut self, graph: &Graph, op: &Op, kind: MegatronOp, frame: &mut Frame, results: Results) {
        let sizes = Sizes::of(graph, op, kind);
        if !graph.trains(op, 0) {
            return self.frozen_row_linear(graph, op, sizes, frame, results);
        }
        if let Some(fp8) = sizes.fp8 {
            return self.fp8_row_linear(graph, op, sizes, fp8, frame, results);
        }
        let out = self.row_product(sizes, graph.values[op.outputs[0]].bytes());
        frame.slots[op.outputs[0]] = Some(out);
        let input = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[input]);
    }

    /// A product summed over ranks, or the rank's part of it of so many bytes.
    pub(super) fn row_product(&mut self, sizes: Sizes, bytes: u64) -> Storage {
        let product = sizes.forward(self.settings.forward);
        if let Some(scatter) = sizes.scatter {
            let part = self.storage(bytes, "te.generic_gemm");
            let made = sizes.whole_product();
            match scatter {
                Scatter::Pipeline(sms) => self.scatter_in_pipeline(product, made, sms),
                Scatter::Ring => self.scatter_in_ring(product, made),
            }
            return part;
        }
        let whole = self.storage(sizes.made(), "te.generic_gemm");
        self.engine_product(product);
        self.summed(whole, bytes, sizes)
    }

    /// The sum over ranks of a product, or the rank's part of it.
    pub(super) fn summed(&mut self, whole: Storage, bytes: u64, sizes: Sizes) -> Storage {
        if sizes.sequence {
            let part = self.storage(bytes, "reduce_scatter_tensor");
            self.exchange_now(Collective::ReduceScatter, sizes.made(), sizes.dtype);
            self.release(whole);
            return part;
        }
        if sizes.splits {
            self.exchange_now(Collective::AllReduce, sizes.made(), sizes.dtype);
        }
        whole
    }

    pub(super) fn row_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let sizes = Sizes::of(graph, op, kind);
        if !graph.trains(op, 0) {
            return self.frozen_row_linear_backward(node, sizes, frame, gradient);
        }
        if let Some(fp8) = sizes.fp8 {
            return self.fp8_row_linear_backward(node, sizes, fp8, frame, gradient);
        }
        let (dtype, dispatch) = (sizes.dtype, self.settings.backward);
        let gathered = (sizes.sequence && !sizes.overlap).then(|| {
            let whole = self.temporary(sizes.made(), "all_gather_into_tensor");
            self.exchange_now(Collective::AllGather, sizes.made(), dtype);
            whole
        });
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        let product = sizes.data_gradient(dispatch);
        if sizes.overlap {
            self.gather_overlapped(product, sizes.whole_product());
        } else {
            self.engine_product(product);
        }
        let input = frame.saved[Self::saved(frame, index).0];
        let weight = self.engine_weight_gradient(sizes.alone(), dispatch, &[input, gathered.unwrap_or(gradient)]);
        if let Some(gathered) = gathered {
            self.release(gathered);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        self.store_engine_weight(frame.params.index(op.params[0]), weight, sizes);
    }
}
