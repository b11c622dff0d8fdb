//! `TopKRouter` (`core/transformer/moe/router.py`, `moe_utils.py`, 0.16.1): a linear, the k largest logits, their weights as
//! a matrix over all experts, a map of the chosen, and the loss that balances experts. Eager operators throughout, on small
//! tensors: it costs the host more than the device.

mod fused;
mod numbers;
mod sinkhorn;

pub(super) use numbers::{INDEX, Largest, NUMBER, Sizes};

use super::super::frame::{Node, Results};
use super::super::shape::MatmulShape;
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::experts::{RoutedOp, Scores};
use crate::program::{Collective, DType, Dispatch, MatmulLayout, MemoryKind};

impl Eager {
    /// Ones where an expert is chosen, `[T, E]`, one byte each.
    fn chosen_map(&mut self, sizes: Sizes) -> Storage {
        let wide = sizes.every * NUMBER;
        let zeros = self.few("aten.zeros_like", sizes.all, 0);
        let whole = self.few("aten._to_copy", wide, sizes.all);
        self.release(zeros);
        let ones = self.few("aten.scatter", wide, wide + sizes.some * INDEX);
        self.release(whole);
        let map = self.few("aten._to_copy", sizes.every, wide);
        self.release(ones);
        map
    }

    pub(super) fn route(&mut self, graph: &Graph, op: &Op, kind: RoutedOp, frame: &mut Frame, results: Results) {
        let sizes = Sizes::of(graph, op, kind);
        let (routed, value) = (sizes.routed, &graph.values[op.inputs[0]]);
        let logits = self.storage(sizes.all, "te.generic_gemm");
        let shape = MatmulShape { m: routed.tokens, n: routed.experts, k: graph.dims.d };
        self.engine_matmul(shape, value.dtype, MatmulLayout::Forward, self.settings.forward);
        let mut saved = vec![self.retain(Self::value(frame, op.inputs[0]))];
        if sizes.fused {
            return self.route_at_once(op, sizes, frame, results, saved, logits);
        }
        let evens = sizes.scores == Scores::Sinkhorn;
        let ([mut probs, mut map], kept) = if evens { self.evened(sizes) } else { self.best_weights(sizes) };
        saved.extend(kept);
        if let Some(capacity) = sizes.routed.capacity {
            [probs, map] = self.dropped(sizes, capacity, [probs, map]);
            saved.push(self.retain(map));
        }
        // Under a checkpoint's `no_grad` the loss is left to the recompute.
        if sizes.auxiliary && results == Results::Save {
            saved.extend(self.balance(sizes));
        }
        if sizes.choice.correction && results == Results::Save {
            // How many copies each expert got, for the correction of the next step.
            let counted = sizes.every + sizes.routed.experts * NUMBER;
            self.pointwise("triton_count", MemoryKind::Elementwise, counted, counted - sizes.every, Dispatch::Compiled);
        }
        self.release(logits);
        frame.slots[op.outputs[0]] = Some(probs);
        frame.slots[op.outputs[1]] = Some(map);
        self.keep(frame, results, &saved);
    }

    /// Weights of all experts, zero where they are not among the k largest; the map of the chosen; and what backward needs.
    fn best_weights(&mut self, sizes: Sizes) -> ([Storage; 2], Vec<Storage>) {
        let (weights, kept) = self.weights(sizes);
        let zeros = self.few("aten.zeros_like", sizes.all, 0);
        let probs = self.few("aten.scatter", sizes.all, sizes.all + sizes.chosen + sizes.some * INDEX);
        self.release(zeros);
        let map = self.chosen_map(sizes);
        self.release(weights);
        ([probs, map], kept)
    }

    /// The loss that balances experts (`switch_load_balancing_loss_func`): softmax of all logits, times how many copies
    /// each expert was sent by the ranks that share a sequence. Returns what backward needs.
    fn balance(&mut self, sizes: Sizes) -> [Storage; 3] {
        let experts = sizes.routed.experts;
        let wide = sizes.every * NUMBER;
        let soft = if sizes.scores == Scores::Sigmoid {
            let soft = self.few("aten.sigmoid", sizes.all, sizes.all);
            let sum = self.few("aten.sum", sizes.routed.tokens * NUMBER, sizes.all);
            self.pointwise("aten.div", MemoryKind::Elementwise, sizes.all, sizes.all, self.settings.forward);
            self.release(sum);
            soft
        } else {
            self.wide_softmax(sizes.every, sizes.narrow)
        };
        let [values, indices] = self.top_k(wide, Largest { bytes: sizes.some * NUMBER, count: sizes.some });
        let map = self.chosen_map(sizes);
        self.release(values);
        self.release(indices);
        let counts = self.count(sizes.routed);
        self.expert_exchange(|ranks| ranks.balance, Collective::AllReduce, experts * INDEX, DType::Int64);
        let sums = self.few("aten.sum", experts * NUMBER, wide);
        let product = self.few("aten.mul", experts * NUMBER, experts * (NUMBER + INDEX));
        let sum = self.few("aten.sum", NUMBER, experts * NUMBER);
        self.release(product);
        let loss = self.few("aten.mul", NUMBER, NUMBER);
        self.release(sum);
        self.release(sums);
        let logged = self.few("aten.div", NUMBER, NUMBER);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * NUMBER, NUMBER, self.settings.forward);
        self.release(logged);
        self.release(map);
        [soft, counts, loss]
    }

    /// Softmax's gradient, in the router's type.
    fn softmax_gradient(&mut self, numbers: u64, narrow: bool) -> Storage {
        const NAME: &str = "aten._softmax_backward_data";
        let wide = numbers * NUMBER;
        let whole = self.temporary(wide, NAME);
        let made = self.temporary(wide, NAME);
        self.pointwise(NAME, MemoryKind::Softmax, 2 * wide, wide, self.settings.backward);
        self.release(whole);
        if !narrow {
            return made;
        }
        let cast = self.pointwise_gradient("aten._to_copy", wide / 2, wide);
        self.release(made);
        cast
    }

    pub(super) fn route_backward(&mut self, node: Node<'_>, kind: RoutedOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let sizes = Sizes::of(graph, op, kind);
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].to_vec();
        let of_logits = if sizes.fused {
            self.route_at_once_backward(sizes, &saved[1..], gradient)
        } else if sizes.scores == Scores::Sinkhorn {
            self.evened_gradient(sizes, [saved[1], saved[2]], gradient)
        } else {
            self.logits_gradient(sizes, &saved, gradient)
        };
        self.router_gradients(node, sizes, frame, of_logits, saved[0]);
    }

    /// The gradient of the logits, operator by operator.
    fn logits_gradient(&mut self, sizes: Sizes, saved: &[Storage], gradient: Storage) -> Storage {
        let own = saved.len() - if self.balances(sizes, saved.len()) { 3 } else { 0 };
        let balanced = (own < saved.len()).then(|| {
            for name in ["aten.ones_like", "aten.mul", "aten.mul", "aten.mul"] {
                self.pointwise(name, MemoryKind::Elementwise, NUMBER, NUMBER, self.settings.backward);
            }
            let made = self.softmax_gradient(sizes.every, sizes.narrow);
            saved[own..].iter().rev().for_each(|&storage| self.release(storage));
            made
        });
        let mut gradient = gradient;
        if sizes.routed.capacity.is_some() {
            let kept = self.pointwise_gradient("aten.mul", sizes.all, sizes.all + sizes.every);
            self.release(gradient);
            gradient = kept;
        }
        let picked = self.pointwise_gradient("aten.gather", sizes.chosen, sizes.chosen + sizes.some * INDEX);
        self.release(gradient);
        if sizes.choice.scales {
            self.pointwise("aten.mul", MemoryKind::Elementwise, sizes.chosen, sizes.chosen, self.settings.backward);
        }
        let of_scores = if sizes.scores == Scores::Sigmoid {
            let kept = saved[1..5].try_into().expect("four things of a sigmoid are kept");
            let made = self.sigmoid_gradient(sizes, kept);
            self.release(picked);
            made
        } else {
            self.softmax_logits(sizes, [saved[1], saved[2]], picked)
        };
        let first = if sizes.scores == Scores::Sigmoid { 5 } else { 3 };
        saved[first..own].iter().for_each(|&storage| self.release(storage));
        let mut of_logits = of_scores;
        if let Some(other) = balanced {
            let sum = self.pointwise_gradient("aten.add", sizes.all, 2 * sizes.all);
            self.release(other);
            self.release(of_logits);
            of_logits = sum;
        }
        of_logits
    }

    /// Whether what was saved ends with what the balancing loss needs.
    fn balances(&self, sizes: Sizes, saved: usize) -> bool {
        let masks = usize::from(sizes.choice.groups.is_some() && !sizes.choice.correction);
        let masks = masks + usize::from(sizes.routed.capacity.is_some());
        saved > masks + if sizes.scores == Scores::Sigmoid { 5 } else { 3 }
    }

    /// The gradient of the logits through softmax and the choice.
    fn softmax_logits(&mut self, sizes: Sizes, [indices, soft]: [Storage; 2], picked: Storage) -> Storage {
        let widened = sizes.narrow.then(|| self.pointwise_gradient("aten._to_copy", 2 * sizes.chosen, sizes.chosen));
        let of_chosen = match sizes.scores {
            Scores::Chosen => self.softmax_gradient(sizes.some, sizes.narrow),
            _ => self.retain(picked),
        };
        widened.into_iter().chain([picked, soft]).for_each(|storage| self.release(storage));
        let zeros = self.pointwise_gradient("aten.new_zeros", sizes.all, 0);
        let mut of_logits = self.pointwise_gradient("aten.scatter", sizes.all, sizes.all + sizes.chosen);
        [zeros, of_chosen, indices].into_iter().for_each(|storage| self.release(storage));
        if sizes.scores == Scores::All {
            let through = self.softmax_gradient(sizes.every, sizes.narrow);
            self.release(of_logits);
            of_logits = through;
        }
        of_logits
    }

    /// The gradients of the router's input and of its parameters.
    fn router_gradients(
        &mut self,
        node: Node<'_>,
        sizes: Sizes,
        frame: &mut Frame,
        of_logits: Storage,
        input: Storage,
    ) {
        let Node { graph, op, .. } = node;
        let (value, routed, d) = (&graph.values[op.inputs[0]], sizes.routed, graph.dims.d);
        let dispatch = self.settings.backward;
        let made = |this: &mut Self, elements: u64, shape, layout| {
            if sizes.narrow {
                let made = this.temporary(elements * value.dtype.bytes(), "te.generic_gemm");
                this.engine_matmul(shape, value.dtype, layout, dispatch);
                return made;
            }
            // In fp32 the other operand is cast first, and the result back.
            let wide = this.temporary(elements * NUMBER, "te.generic_gemm");
            this.engine_matmul(shape, DType::Fp32, layout, dispatch);
            let cast = this.pointwise_gradient("aten._to_copy", elements * value.dtype.bytes(), elements * NUMBER);
            this.release(wide);
            cast
        };
        let shape = MatmulShape { m: routed.tokens, n: d, k: routed.experts };
        let of_input = made(self, routed.tokens * d, shape, MatmulLayout::DataGradient);
        let shape = MatmulShape { m: routed.experts, n: d, k: routed.tokens };
        let weight = made(self, routed.experts * d, shape, MatmulLayout::WeightGradient);
        let bias = op
            .params
            .get(1)
            .map(|_| self.pointwise_gradient("aten.sum", routed.experts * value.dtype.bytes(), sizes.all));
        self.release(of_logits);
        self.release(input);
        self.accumulate(frame, op.inputs[0], Gradient { storage: of_input, view: true });
        self.store_leaf(frame.params.index(op.params[0]), weight, value.dtype);
        if let Some(bias) = bias {
            self.store_leaf(frame.params.index(op.params[1]), bias, value.dtype);
        }
    }
}
