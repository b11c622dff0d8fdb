//! Backward of operators that are one kernel over memory, as their rows in [`crate::model::operators`] say.

use super::frame::Node;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::operators::{self, Gradients, Reads, Simple, Step};

impl Eager {
    pub(super) fn simple_backward(&mut self, node: Node<'_>, simple: &Simple, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, .. } = node;
        match simple.gradients {
            Gradients::Made(rules) => self.made_gradients(node, rules, frame, gradient),
            Gradients::Handed => self.accumulate(frame, op.inputs[0], Gradient { storage: gradient, view: true }),
            Gradients::Parts => {
                for &part in &op.inputs {
                    self.retain(gradient);
                    self.accumulate(frame, part, Gradient { storage: gradient, view: true });
                }
                self.release(gradient);
            }
            Gradients::Shared => self.shared_gradient(graph, op, frame, gradient),
            Gradients::Nothing => self.release(gradient),
        }
    }

    /// Gradients made by kernels, one after the other; they reach the inputs in the order of these.
    pub(super) fn made_gradients(
        &mut self,
        node: Node<'_>,
        rules: &[operators::Gradient],
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let bytes = graph.values[op.inputs[0]].bytes();
        let of_result = graph.values[op.outputs[0]].bytes();
        let run = |this: &mut Self, step: &Step| {
            let read = match step.reads {
                Reads::Tensors(count) => count * bytes,
                Reads::Gradient => of_result,
            };
            this.pointwise_gradient(step.kernel, bytes, read)
        };
        let mut made = vec![None; op.inputs.len()];
        for rule in rules.iter().filter(|rule| graph.needs(op.inputs[rule.of])) {
            let temporaries: Vec<Storage> = rule.temporaries.iter().map(|step| run(self, step)).collect();
            made[rule.of] = Some(run(self, &rule.result));
            for temporary in temporaries.into_iter().rev() {
                self.release(temporary);
            }
        }
        self.let_go(frame, index, gradient);
        for (&input, storage) in op.inputs.iter().zip(made) {
            if let Some(storage) = storage {
                self.accumulate(frame, input, storage.into());
            }
        }
    }

    /// The gradient of a sum is that of each of its operands.
    fn shared_gradient(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, gradient: Storage) {
        let (first, sum) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        for &operand in op.inputs.iter().filter(|&&operand| graph.needs(operand)) {
            let value = &graph.values[operand];
            let part = if value.dtype != sum.dtype {
                self.pointwise_gradient("aten._to_copy", value.bytes(), sum.bytes())
            } else if value.shape.len() < sum.shape.len() {
                // The operand was broadcast over the batch; the sum is a copy even of a batch of one.
                self.pointwise_gradient("aten.sum", value.bytes(), first.bytes())
            } else {
                self.retain(gradient)
            };
            self.accumulate(frame, operand, part.into());
        }
        self.release(gradient);
    }
}
