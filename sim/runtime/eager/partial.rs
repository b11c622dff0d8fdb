//! Backward of operators that read frozen weights, or values that need no gradient: only what is asked for is made
//! (`task_should_compute_output`, `tools/autograd/templates/Functions.cpp`).

use super::frame::Node;
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::OpKind;
use crate::program::MatmulLayout;

impl Eager {
    /// A linear in a graph of which parts are frozen: gradients of weight, of input and of bias, each if it is asked for.
    pub(super) fn partial_linear(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let OpKind::Linear { inputs, outputs } = op.kind else { return self.release(gradient) };
        let value = &graph.values[op.inputs[0]];
        let (tokens, dtype, dispatch) = (value.elements / inputs, value.dtype, self.settings.backward);
        let has_bias = op.params.len() > 1;
        let [weight_asked, bias_asked] = [0, 1].map(|at| graph.trains(op, at));
        let input_asked = graph.needs(op.inputs[0]);
        let (mut weight, mut result) = (None, None);
        // With a bias (`addmm`) the input's gradient comes first.
        for of_weight in if has_bias { [false, true] } else { [true, false] } {
            if of_weight && weight_asked {
                weight = Some(self.temporary(outputs * inputs * dtype.bytes(), "aten.mm"));
                let shape = MatmulShape { m: outputs, n: inputs, k: tokens };
                self.matmul("aten.mm", shape, dtype, MatmulLayout::WeightGradient, dispatch);
            } else if !of_weight && input_asked {
                let whole = self.unpack_weight(graph, op, dtype, dispatch);
                result = Some(self.temporary(tokens * inputs * dtype.bytes(), "aten.mm"));
                let shape = MatmulShape { m: tokens, n: inputs, k: outputs };
                self.matmul("aten.mm", shape, dtype, MatmulLayout::DataGradient, dispatch);
                whole.into_iter().for_each(|whole| self.release(whole));
            }
        }
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed {
            self.let_go_of_saved(frame, index);
        }
        let bias = bias_asked.then(|| self.sum_rows(tokens, outputs, dtype));
        if checkpointed {
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.let_go(frame, index, gradient);
        }
        if let Some(bias) = bias {
            let param = frame.params.index(op.params[1]);
            let (bias, bias_dtype) = self.upcast(param, bias, dtype);
            self.store_leaf(param, bias, bias_dtype);
        }
        let param = frame.params.index(op.params[0]);
        if let Some(weight) = weight.take_if(|_| has_bias) {
            self.store_weight(param, weight, dtype);
        }
        if let Some(storage) = result {
            self.accumulate(frame, op.inputs[0], Gradient { storage, view: true });
        }
        if let Some(weight) = weight {
            self.store_weight(param, weight, dtype);
        }
    }
}
