//! Bias and activation as autograd functions of Megatron's (`fusions/fused_bias_gelu.py`, `fused_bias_swiglu.py`): they
//! save their input, and run one kernel each way.

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Dispatch, MemoryKind};

impl Eager {
    pub(super) fn bias_activation(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        const NAME: &str = "triton_bias_activation";
        let (read, bytes) = (graph.values[op.inputs[0]].bytes(), graph.values[op.outputs[0]].bytes());
        let out = self.made(NAME, bytes, read, Dispatch::Compiled);
        frame.slots[op.outputs[0]] = Some(out);
        let input = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[input]);
    }

    pub(super) fn bias_activation_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        const NAME: &str = "triton_bias_activation_backward";
        let value = &graph.values[op.inputs[0]];
        let (bytes, out) = (value.bytes(), graph.values[op.outputs[0]].bytes());
        let result = self.temporary(bytes, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, bytes + out, bytes, Dispatch::Compiled);
        // The bias is given the same gradient; autograd sums it once the function has returned.
        let width = op.params.first().filter(|_| graph.trains(op, 0)).map(|&param| graph.params[param].elements());
        self.release(gradient);
        let bias = width.map(|width| self.sum_rows(value.elements / width, width, value.dtype));
        let [input] = Self::saved_by(frame, index);
        self.release(input);
        self.accumulate(frame, op.inputs[0], result.into());
        if let Some(bias) = bias {
            self.store_leaf(frame.params.index(op.params[0]), bias, value.dtype);
        }
    }

    /// The activation of so many bytes and numbers; gated, it reads the first half of each row.
    pub(super) fn act(&mut self, (bytes, elements): (u64, u64), gated: bool, dispatch: Dispatch) -> Storage {
        match gated {
            true => self.made_strided("aten.act", bytes, elements, dispatch),
            false => self.made("aten.act", bytes, bytes, dispatch),
        }
    }

    /// The second half of each row, copied by the addition of an offset of zero.
    pub(super) fn second_half(&mut self, bytes: u64, elements: u64, dispatch: Dispatch) -> Storage {
        self.made_strided("aten.add", bytes, elements, dispatch)
    }

    /// The same in PyTorch's operators; gated, the second half is copied by the addition of an offset of zero
    /// (`core/transformer/mlp.py`).
    pub(super) fn plain_activation(
        &mut self,
        graph: &Graph,
        op: &Op,
        gated: bool,
        frame: &mut Frame,
        results: Results,
    ) {
        let (bytes, value) = (graph.values[op.inputs[0]].bytes(), &graph.values[op.outputs[0]]);
        let (out, elements) = (value.bytes(), value.elements);
        let dispatch = self.settings.forward;
        let mut input = self.retain(Self::value(frame, op.inputs[0]));
        if !op.params.is_empty() {
            let biased = self.made("aten.add", bytes, bytes, dispatch);
            self.release(input);
            if let Some(before) = frame.slots[op.inputs[0]].take() {
                self.release(before);
            }
            input = biased;
        }
        let mut saved = vec![input];
        let active = self.act((out, elements), gated, dispatch);
        if gated {
            let half = self.second_half(out, elements, dispatch);
            let product = self.made("aten.mul", out, 2 * out, dispatch);
            saved.extend([half, active]);
            frame.slots[op.outputs[0]] = Some(product);
        } else {
            frame.slots[op.outputs[0]] = Some(active);
        }
        self.keep(frame, results, &saved);
    }

    pub(super) fn plain_activation_backward(
        &mut self,
        node: Node<'_>,
        gated: bool,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let value = &graph.values[op.inputs[0]];
        let (bytes, out) = (value.bytes(), graph.values[op.outputs[0]].bytes());
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].to_vec();
        let result = if gated {
            let linear = self.pointwise_gradient("aten.mul", out, 2 * out);
            let active = self.pointwise_gradient("aten.mul", out, 2 * out);
            for storage in [gradient, saved[1], saved[2]] {
                self.release(storage);
            }
            let gate = self.strided_gradient("aten.act_backward", out, graph.values[op.outputs[0]].elements);
            self.release(active);
            self.release(saved[0]);
            let whole = self.pointwise_gradient("aten.cat", bytes, bytes);
            self.release(gate);
            self.release(linear);
            whole
        } else {
            let result = self.pointwise_gradient("aten.act_backward", bytes, 2 * bytes);
            self.release(gradient);
            self.release(saved[0]);
            result
        };
        let width = op.params.first().filter(|_| graph.trains(op, 0)).map(|&param| graph.params[param].elements());
        let bias = width.map(|width| self.sum_rows(value.elements / width, width, value.dtype));
        self.accumulate(frame, op.inputs[0], result.into());
        if let Some(bias) = bias {
            self.store_leaf(frame.params.index(op.params[0]), bias, value.dtype);
        }
    }
}
