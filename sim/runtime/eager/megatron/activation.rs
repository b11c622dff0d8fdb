//! Bias and activation as autograd functions of Megatron's (`fusions/fused_bias_gelu.py`, `fused_bias_swiglu.py`): they
//! save their input, and run one kernel each way.

use super::super::forward::Results;
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

    pub(super) fn bias_activation_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        index: usize,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        const NAME: &str = "triton_bias_activation_backward";
        let value = &graph.values[op.inputs[0]];
        let (bytes, out) = (value.bytes(), graph.values[op.outputs[0]].bytes());
        let result = self.temporary(bytes, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, bytes + out, bytes, Dispatch::Compiled);
        // The bias is given the same gradient; autograd sums it once the function has returned.
        let width = op.params.first().map(|&param| graph.params[param].elements());
        self.release(gradient);
        let bias = width.map(|width| self.sum_rows(value.elements / width, width, value.dtype));
        let [input] = Self::saved_by(frame, index);
        self.release(input);
        self.accumulate(frame, op.inputs[0], result.into());
        if let Some(bias) = bias {
            self.store_leaf(frame.params.index(op.params[0]), bias, value.dtype);
        }
    }
}
