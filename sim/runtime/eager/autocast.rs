//! Linears under autocast: their weights are values, cast from parameters for each call ([`crate::model::autocast`]).

use super::casts::Autocast;
use super::frame::Node;
use super::kernels::has_bias;
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{DType, MatmulLayout};

impl Eager {
    /// A cast weight that autocast's cache holds, if it has one (`cached_cast`, `aten/src/ATen/autocast_mode.cpp`).
    pub(super) fn cache_cast(&mut self, cast: Storage) {
        if let Autocast::On(casts) = &mut self.autocast {
            casts.push(cast);
            self.retain(cast);
        }
    }

    /// Autocast begins around a forward and its loss; `cache`: `cache_enabled`.
    pub fn autocast_begins(&mut self, cache: bool) {
        self.autocast = if cache { Autocast::On(vec![]) } else { Autocast::Uncached };
    }

    /// Autocast begins anew around a recompute, which has the settings of its forward.
    pub(super) fn autocast_resumes(&mut self) {
        if let Autocast::Off = self.autocast {
            self.autocast = Autocast::On(vec![]);
        }
    }

    /// Autocast ends, and with it its cache.
    pub fn autocast_ends(&mut self) {
        if let Autocast::On(casts) = &mut self.autocast {
            let casts = std::mem::take(casts);
            self.autocast = Autocast::Off;
            casts.into_iter().for_each(|cast| self.release(cast));
        }
    }

    /// Backward of a linear whose weight, and bias, are values.
    pub(super) fn linear_of_values(
        &mut self,
        node: Node<'_>,
        inputs: u64,
        outputs: u64,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let (dtype, dispatch) = (graph.values[op.inputs[0]].dtype, self.settings.backward);
        let tokens = graph.values[op.inputs[0]].elements / inputs;
        let mut made = [None; 2];
        let matmuls = [
            (MatmulShape { m: outputs, n: inputs, k: tokens }, MatmulLayout::WeightGradient, 1),
            (MatmulShape { m: tokens, n: inputs, k: outputs }, MatmulLayout::DataGradient, 0),
        ];
        let order = if has_bias(op) { [1, 0] } else { [0, 1] };
        for (shape, layout, of) in order.map(|at| matmuls[at]) {
            made[of] = Some(self.temporary(shape.m * shape.n * dtype.bytes(), "aten.mm"));
            self.matmul("aten.mm", shape, dtype, layout, dispatch);
        }
        // The bias's gradient is summed when the node has run: under checkpointing what it saved has gone by then.
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed {
            self.let_go_of_saved(frame, index);
        }
        let bias = has_bias(op).then(|| self.sum_rows(tokens, outputs, dtype));
        if checkpointed {
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.let_go(frame, index, gradient);
        }
        let gradients = [made[0], made[1], bias];
        for (&value, storage) in op.inputs.iter().zip(gradients) {
            let Some(storage) = storage else { continue };
            self.accumulate(frame, value, Gradient { storage, view: true });
        }
    }

    /// Backward of a cast weight: its gradient in the parameter's type.
    pub(super) fn cast_weight_backward(&mut self, graph: &Graph, op: &Op, frame: &Frame, gradient: Storage) {
        let from = graph.values[op.outputs[0]].dtype;
        let wide = self.cast_gradient(gradient, from, DType::Fp32);
        self.store_leaf(frame.params.index(op.params[0]), wide, DType::Fp32);
    }
}
