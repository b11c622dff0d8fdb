//! An expert's activation times the weights of its rows in PyTorch's operators, as without `--bias-activation-fusion`
//! (`core/transformer/mlp.py`, `core/transformer/moe/experts.py`, 0.16.1).

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};

/// Bytes of what is made: in the activations' type, and in that of the product, which is the weights' where that is wider.
struct Sizes {
    up: u64,
    out: u64,
    product: u64,
    weights: u64,
    /// Numbers of the activations.
    elements: u64,
}

impl Sizes {
    fn of(graph: &Graph, op: &Op) -> Sizes {
        let [up, weights, out] = [op.inputs[0], op.inputs[1], op.outputs[0]].map(|value| &graph.values[value]);
        let product = out.elements * out.dtype.bytes().max(weights.dtype.bytes());
        Sizes { up: up.bytes(), out: out.bytes(), product, weights: weights.bytes(), elements: out.elements }
    }

    /// Whether the product is wider than what goes on.
    fn widens(&self) -> bool {
        self.product != self.out
    }
}

impl Eager {
    pub(super) fn weigh_plainly(&mut self, graph: &Graph, op: &Op, gated: bool, frame: &mut Frame, results: Results) {
        let sizes = Sizes::of(graph, op);
        let (out, dispatch) = (sizes.out, self.settings.forward);
        let mut saved = vec![self.retain(Self::value(frame, op.inputs[0]))];
        let mut active = self.act((out, sizes.elements), gated, dispatch);
        if gated {
            let half = self.second_half(out, sizes.elements, dispatch);
            let product = self.made("aten.mul", out, 2 * out, dispatch);
            saved.extend([half, active]);
            active = product;
        }
        saved.extend([active, self.retain(Self::value(frame, op.inputs[1]))]);
        let mut weighed = self.made_strided("aten.mul", sizes.product, sizes.elements, dispatch);
        if sizes.widens() {
            let narrow = self.made("aten._to_copy", out, sizes.product, dispatch);
            self.release(weighed);
            weighed = narrow;
        }
        frame.slots[op.outputs[0]] = Some(weighed);
        self.keep(frame, results, &saved);
    }

    pub(super) fn weigh_plainly_backward(&mut self, node: Node<'_>, gated: bool, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let sizes = Sizes::of(graph, op);
        let (start, end) = Self::saved(frame, index);
        let mut saved = frame.saved[start..end].to_vec();
        let (of_active, of_weights) = self.product_gradients(&sizes, &mut saved, gradient);
        let of_up = if gated {
            self.gate_gradient(&sizes, &saved, of_active)
        } else {
            let result = self.pointwise_gradient("aten.act_backward", sizes.up, 2 * sizes.up);
            self.release(of_active);
            self.release(saved[0]);
            result
        };
        self.accumulate(frame, op.inputs[1], of_weights.into());
        self.accumulate(frame, op.inputs[0], of_up.into());
    }

    /// Gradients of both factors of the product; takes what was kept of them off `saved`.
    fn product_gradients(&mut self, sizes: &Sizes, saved: &mut Vec<Storage>, gradient: Storage) -> (Storage, Storage) {
        let mut gradient = gradient;
        if sizes.widens() {
            let wide = self.pointwise_gradient("aten._to_copy", sizes.product, sizes.out);
            self.release(gradient);
            gradient = wide;
        }
        let mut of_active = self.strided_gradient("aten.mul", sizes.product, sizes.elements);
        let whole = self.pointwise_gradient("aten.mul", sizes.product, sizes.product + sizes.out);
        let of_weights = self.pointwise_gradient("aten.sum", sizes.weights, sizes.product);
        self.release(whole);
        if sizes.widens() {
            let narrow = self.pointwise_gradient("aten._to_copy", sizes.out, sizes.product);
            self.release(of_active);
            of_active = narrow;
        }
        let kept = saved.split_off(saved.len() - 2);
        kept.into_iter().chain([gradient]).for_each(|storage| self.release(storage));
        (of_active, of_weights)
    }

    /// The gradient of both halves of a gated activation's input.
    fn gate_gradient(&mut self, sizes: &Sizes, saved: &[Storage], gradient: Storage) -> Storage {
        let out = sizes.out;
        let linear = self.pointwise_gradient("aten.mul", out, 2 * out);
        let active = self.pointwise_gradient("aten.mul", out, 2 * out);
        [gradient, saved[1], saved[2]].into_iter().for_each(|storage| self.release(storage));
        let gate = self.strided_gradient("aten.act_backward", out, sizes.elements);
        [active, saved[0]].into_iter().for_each(|storage| self.release(storage));
        let whole = self.pointwise_gradient("aten.cat", sizes.up, sizes.up);
        [gate, linear].into_iter().for_each(|storage| self.release(storage));
        whole
    }
}
