//! Linears whose weight is frozen: Transformer Engine's (`transformer_engine/pytorch/module/layernorm_linear.py`, `linear.py`, 2.9)
//! and Megatron-Core's own (`LinearWithFrozenWeight`, `core/tensor_parallel/layers.py`, 0.16.1).
//!
//! Nothing is saved for a weight's gradient, nothing gathered for it, and a norm's gradients of its parameters, which its kernel
//! makes all the same, are dropped. Where an adapter reads a norm's result, that is made in the type of the activations.

use super::super::frame::{Node, Results};
use super::super::shape::MatmulShape;
use super::super::{Eager, Frame, Storage};
use super::fp8::{Copies, Wide};
use super::products::{Sizes, statistics};
use crate::model::graph::{Graph, Op, Value};
use crate::model::megatron::{Bias, Fp8Recipe, MegatronOp, Reads};
use crate::program::{Collective, DType, MatmulLayout};

impl Eager {
    /// Stores the gradient of an operator's parameter, or lets go of it if the parameter is frozen.
    pub(super) fn store_trained(
        &mut self,
        (graph, op): (&Graph, &Op),
        at: usize,
        frame: &Frame,
        (gradient, dtype): (Storage, DType),
    ) {
        if graph.trains(op, at) {
            self.store_leaf(frame.params.index(op.params[at]), gradient, dtype);
        } else {
            self.release(gradient);
        }
    }

    /// `LayerNormLinear`. What its second output is, if it has one, is the norm's result, gathered.
    pub(super) fn frozen_norm_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let MegatronOp::NormLinear { norms, fp8, .. } = kind else { unreachable!("called for norms before linears") };
        let sizes = Sizes::of(graph, op, kind);
        let value = &graph.values[op.inputs[0]];
        let (rows, hands_out) = (graph.dims.local_tokens(), op.outputs.len() > 1);
        let mut saved = vec![self.retain(Self::value(frame, op.inputs[0]))];
        let (numbers, out) = if let Some(fp8) = fp8 {
            let own = Wide { parts: sizes.sequence, ..Wide::own(value.bytes(), value.dtype) };
            let recipe = fp8.recipe;
            let (numbers, narrow, read) = if hands_out {
                let (numbers, normed) = self.normalised(value, rows, statistics(norms));
                let mut handed = normed;
                if sizes.sequence {
                    handed = self.gathered(sizes.read(), sizes.dtype);
                }
                let narrow = self.quantised(own, Copies::Rows, recipe);
                let mut read = vec![];
                if sizes.sequence {
                    self.release(normed);
                    let whole = Wide { parts: true, ..Wide::own(sizes.read(), sizes.dtype) };
                    read = self.quantised(whole, Copies::Rows, recipe);
                }
                frame.slots[op.outputs[1]] = Some(handed);
                (numbers, narrow, read)
            } else {
                let (numbers, narrow) = self.normalised_in_fp8(value, (rows, statistics(norms)), own, recipe);
                let travels = Self::travels(sizes.read(), sizes.dtype, recipe);
                let gathered = sizes.sequence.then(|| self.gathered_now(travels));
                (numbers, narrow, gathered.into_iter().collect())
            };
            self.renew_weight(sizes.inputs * sizes.outputs, sizes.dtype, fp8);
            let out = self.storage(sizes.made(), "te.generic_gemm");
            self.engine_product(sizes.forward(self.settings.forward));
            read.into_iter().for_each(|storage| self.release(storage));
            if hands_out {
                saved.extend(narrow);
            } else {
                narrow.into_iter().for_each(|storage| self.release(storage));
            }
            (numbers, out)
        } else {
            let (numbers, normed) = self.normalised(value, rows, statistics(norms));
            let gathered = sizes.sequence.then(|| self.gathered(sizes.read(), sizes.dtype));
            let out = self.storage(sizes.made(), "te.generic_gemm");
            self.engine_product(sizes.forward(self.settings.forward));
            if hands_out {
                frame.slots[op.outputs[1]] = Some(gathered.unwrap_or_else(|| self.retain(normed)));
                saved.push(normed);
            } else {
                gathered.into_iter().chain([normed]).for_each(|storage| self.release(storage));
            }
            (numbers, out)
        };
        frame.slots[op.outputs[0]] = Some(out);
        saved.extend(numbers);
        self.keep(frame, results, &saved);
    }

    /// A norm's statistics, and its result in fp8, of which no transposed copy is made.
    fn normalised_in_fp8(
        &mut self,
        value: &Value,
        (rows, statistics): (u64, usize),
        own: Wide,
        recipe: Fp8Recipe,
    ) -> (Vec<Storage>, Vec<Storage>) {
        if recipe == Fp8Recipe::Delayed {
            return self.norm_to_fp8(value, rows, statistics, own.elements);
        }
        let (numbers, wide) = self.normalised(value, rows, statistics);
        let narrow = self.quantised(own, Copies::Rows, recipe);
        self.release(wide);
        (numbers, narrow)
    }

    pub(super) fn frozen_norm_linear_backward(
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
        let sizes = Sizes::of(graph, op, kind);
        let (dtype, dispatch) = (sizes.dtype, self.settings.backward);
        let of_norm = op.outputs.get(1).and_then(|&value| frame.gradients[value].take()).map(|made| made.storage);
        let mut held = vec![];
        if let Some(fp8) = fp8 {
            // Both copies are made, though only one is read.
            held = self.quantised(Wide::own(sizes.made(), dtype), Copies::all(fp8), fp8.recipe);
            if bias == Bias::Added {
                let sum = match fp8.recipe {
                    Fp8Recipe::Delayed => self.bias_with_cast(sizes.tokens, sizes.outputs, dtype),
                    _ => self.sum_rows(sizes.tokens, sizes.outputs, dtype),
                };
                held.push(sum);
            }
        }
        let whole = self.temporary(sizes.read(), "te.generic_gemm");
        self.engine_product(sizes.data_gradient(dispatch));
        let value = &graph.values[op.inputs[0]];
        let mut part = None;
        if sizes.sequence {
            part = Some(self.temporary(value.bytes(), "reduce_scatter_tensor"));
            self.exchange_now(Collective::ReduceScatter, sizes.read(), dtype);
        } else if sizes.splits {
            self.exchange_now(Collective::AllReduce, sizes.read(), dtype);
        }
        if of_norm.is_some() && !sizes.sequence {
            // The gradient of a gathered result is dropped.
            part = Some(self.pointwise_gradient("aten.add", value.bytes(), 2 * value.bytes()));
        }
        let (result, made) = self.norm_gradients(value, graph.dims.local_tokens(), norms);
        part.into_iter().for_each(|part| self.release(part));
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].to_vec();
        for &storage in saved.iter().rev().chain([&whole]).chain(&held).chain([&gradient]).chain(&of_norm) {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
        for (at, storage) in made.into_iter().enumerate() {
            self.store_trained((graph, op), at, frame, (storage, dtype));
        }
    }

    /// `Linear`, split on its columns.
    pub(super) fn frozen_row_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        sizes: Sizes,
        frame: &mut Frame,
        results: Results,
    ) {
        let mut read = vec![];
        if let Some(fp8) = sizes.fp8 {
            read = self.quantised(Wide::own(sizes.read(), sizes.dtype), Copies::Rows, fp8.recipe);
            self.renew_weight(sizes.inputs * sizes.outputs, sizes.dtype, fp8);
        }
        let out = self.row_product(sizes, graph.values[op.outputs[0]].bytes());
        read.into_iter().for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &[]);
    }

    pub(super) fn frozen_row_linear_backward(
        &mut self,
        node: Node<'_>,
        sizes: Sizes,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { op, index, .. } = node;
        let dtype = sizes.dtype;
        let mut held = vec![];
        match sizes.fp8 {
            Some(fp8) => {
                let bytes = self.bytes(gradient);
                let own = Wide { parts: sizes.sequence, ..Wide::own(bytes, dtype) };
                held = self.quantised(own, Copies::Rows, fp8.recipe);
                if sizes.sequence {
                    let travels = Self::travels(sizes.made(), dtype, fp8.recipe);
                    let gathered = self.temporary(travels.bytes, "all_gather_into_tensor");
                    self.exchange_now(Collective::AllGather, travels.bytes, travels.dtype);
                    held.into_iter().for_each(|storage| self.release(storage));
                    held = vec![gathered];
                }
            }
            None if sizes.sequence => {
                held.push(self.temporary(sizes.made(), "all_gather_into_tensor"));
                self.exchange_now(Collective::AllGather, sizes.made(), dtype);
            }
            None => {}
        }
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        self.engine_product(sizes.data_gradient(self.settings.backward));
        held.into_iter().for_each(|storage| self.release(storage));
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Megatron-Core's own. What is gathered is a tensor of its own, not in the buffer that linears share.
    pub(super) fn frozen_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let (shape, reads, dtype) = product(graph, op, kind);
        let gathered = (reads == Reads::Gathered).then(|| self.gathered(shape.m * shape.k * dtype.bytes(), dtype));
        let out = self.storage(graph.values[op.outputs[0]].bytes(), "aten.mm");
        self.matmul("aten.mm", shape, dtype, MatmulLayout::Forward, self.settings.forward);
        gathered.into_iter().for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        self.keep(frame, results, &[]);
    }

    pub(super) fn frozen_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let (MatmulShape { m, n, k }, reads, dtype) = product(graph, op, kind);
        let bytes = m * k * dtype.bytes();
        let mut result = self.temporary(bytes, "aten.mm");
        let shape = MatmulShape { m, n: k, k: n };
        self.matmul("aten.mm", shape, dtype, MatmulLayout::DataGradient, self.settings.backward);
        if reads == Reads::Copied {
            self.exchange_now(Collective::AllReduce, bytes, dtype);
        }
        self.let_go(frame, index, gradient);
        if reads == Reads::Gathered {
            let part = self.temporary(graph.values[op.inputs[0]].bytes(), "reduce_scatter_tensor");
            self.exchange_now(Collective::ReduceScatter, bytes, dtype);
            self.release(result);
            result = part;
        }
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// The sum over ranks of what each has of all tokens.
    pub(super) fn all_reduced(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let value = &graph.values[op.inputs[0]];
        self.exchange_now(Collective::AllReduce, value.bytes(), value.dtype);
        let sum = self.retain(Self::value(frame, op.inputs[0]));
        frame.slots[op.outputs[0]] = Some(sum);
        self.keep(frame, results, &[]);
    }
}

/// The product of a linear of Megatron-Core's own, what it reads, and its type.
fn product(graph: &Graph, op: &Op, kind: MegatronOp) -> (MatmulShape, Reads, DType) {
    let MegatronOp::Linear { inputs, outputs, reads, .. } = kind else { unreachable!("called for linears") };
    let out = &graph.values[op.outputs[0]];
    (MatmulShape { m: out.elements / outputs, n: outputs, k: inputs }, reads, out.dtype)
}
