//! Backwards in halves, as PyTorch cuts them (`torch/distributed/pipelining/_backward.py`, PyTorch 2.15).
//!
//! The first half asks autograd for the gradient of a stage's input alone and keeps the graph: whatever a node saved stays, and
//! the gradient that reaches a node which reads a parameter is noted. The second half runs those nodes once more for the
//! parameters' gradients, a node at a time in the order of parameters; each lets go of what it saved. Other nodes go with the
//! last node above them that has yet to run, so most of what a forward saved is there until the end.
//!
//! A gradient is cast to the type it is added up in every time. The loop's variables name the node before, its gradient and
//! what came of it, until they name the next. On a device the engine's thread may hold what came of it a little longer.

use super::frame::Node;
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, OpKind};
use crate::program::{DType, MatmulLayout};

/// What the loop over nodes names of the one before (`stage_backward_weight`).
#[derive(Debug, Default)]
pub struct LoopVariables {
    /// The gradient of its result, and whether one name less holds it: a norm's last result has no gradient.
    gradient: Option<(Storage, bool)>,
    /// What came of it.
    made: Vec<Storage>,
}

/// The operators that read parameters, in the order of those.
fn readers(graph: &Graph) -> Vec<usize> {
    let mut readers = vec![];
    for param in 0..graph.params.len() {
        let reader = graph.ops.iter().position(|op| op.params.contains(&param));
        readers.extend(reader.filter(|reader| !readers.contains(reader)));
    }
    readers
}

/// For each operator, the last of `readers` whose node leads to it.
fn held_by(graph: &Graph, readers: &[usize]) -> Vec<Option<usize>> {
    let mut held = vec![None; graph.ops.len()];
    let mut of_value = vec![None; graph.values.len()];
    for (index, op) in graph.ops.iter().enumerate().rev() {
        let own = readers.iter().position(|&reader| reader == index);
        held[index] = op.outputs.iter().filter_map(|&value| of_value[value]).max().max(own);
        for &input in &op.inputs {
            of_value[input] = of_value[input].max(held[index]);
        }
    }
    held
}

impl Eager {
    /// Whether a backward makes gradients of inputs alone.
    pub(super) fn inputs_only(&self) -> bool {
        self.framework.torch().is_some_and(|torch| torch.inputs_only)
    }

    /// A linear's first half.
    pub(super) fn linear_input(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let OpKind::Linear { inputs, outputs } = op.kind else { unreachable!("{:?} is no linear", op.kind) };
        let input = &graph.values[op.inputs[0]];
        let made = self.temporary(input.bytes(), "aten.mm");
        let (shape, dispatch) =
            (MatmulShape { m: input.elements / inputs, n: inputs, k: outputs }, self.settings.backward);
        self.matmul("aten.mm", shape, input.dtype, MatmulLayout::DataGradient, dispatch);
        frame.note(index, gradient);
        self.accumulate(frame, op.inputs[0], Gradient { storage: made, view: true });
        if let (true, Some(sum)) = (graph.is_dtensor(op.inputs[0]), &mut frame.gradients[op.inputs[0]]) {
            sum.view = true;
        }
    }

    /// Lets go of the nodes that no parameter meets or lies above, in the last of a stage's graphs.
    pub fn forget_unmet(&mut self, graph: &Graph, frame: &mut Frame) {
        let held = held_by(graph, &readers(graph));
        self.forget(frame, |index| held[index].is_none());
    }

    fn forget(&mut self, frame: &mut Frame, goes: impl Fn(usize) -> bool) {
        let (gone, stay) = std::mem::take(&mut frame.halved.nodes).into_iter().partition(|&index| goes(index));
        frame.halved.nodes = stay;
        let gone: Vec<usize> = gone;
        for index in gone {
            self.let_go_of_saved(frame, index);
        }
    }

    /// The second half of a graph. `last`: whether no other of the stage's graphs lies above it.
    pub fn backward_weights(&mut self, graph: &Graph, frame: &mut Frame, last: bool, variables: &mut LoopVariables) {
        let readers = readers(graph);
        let held = held_by(graph, &readers);
        for (turn, &index) in readers.iter().enumerate() {
            let Some(at) = frame.halved.gradients.iter().position(|&(noted, _)| noted == index) else { continue };
            let (_, gradient) = frame.halved.gradients.swap_remove(at);
            let before = variables.gradient.replace((gradient, !graph.ops[index].kind.is_linear()));
            let gone = turn.checked_sub(1).filter(|_| last);
            self.moved_on(before, |eager| eager.forget(frame, |index| gone.is_some() && held[index] == gone));
            let made = self.weight_gradients(graph, index, frame);
            for storage in variables.made.drain(..) {
                self.release(storage);
            }
            for (param, storage, dtype) in made {
                variables.made.push(self.retain(storage));
                self.store_leaf(param, storage, dtype);
            }
        }
    }

    /// Ends the second half of a stage: the loop's variables go, and with the last node all others, last to first.
    pub fn end_weights<'f>(&mut self, frames: impl Iterator<Item = &'f mut Frame>, variables: LoopVariables) {
        self.moved_on(variables.gradient, |eager| frames.for_each(|frame| eager.forget(frame, |_| true)));
        for storage in variables.made {
            self.release(storage);
        }
    }

    /// The loop names another node: the one before goes, and its gradient before or after it.
    fn moved_on(&mut self, before: Option<(Storage, bool)>, node_goes: impl FnOnce(&mut Eager)) {
        if let Some((gradient, true)) = before {
            self.release(gradient);
        }
        node_goes(self);
        if let Some((gradient, false)) = before {
            self.release(gradient);
        }
    }

    /// A node's second half: gradients of its parameters, as they are added up.
    fn weight_gradients(&mut self, graph: &Graph, index: usize, frame: &Frame) -> Vec<(usize, Storage, DType)> {
        let op = &graph.ops[index];
        let input = &graph.values[op.inputs[0]];
        let outside = self.program.at_work(op.owner);
        let mut made = vec![];
        if let OpKind::Linear { inputs, outputs } = op.kind {
            let tokens = input.elements / inputs;
            made.push(self.temporary(outputs * inputs * input.dtype.bytes(), "aten.mm"));
            let (shape, dispatch) = (MatmulShape { m: outputs, n: inputs, k: tokens }, self.settings.backward);
            self.matmul("aten.mm", shape, input.dtype, MatmulLayout::WeightGradient, dispatch);
            self.let_go_of_saved(frame, index);
            if op.params.len() > 1 {
                made.push(self.sum_rows(tokens, outputs, input.dtype));
            }
        } else {
            made.extend(self.norm_weights(Node { graph, op, index }, frame));
            self.let_go_of_saved(frame, index);
        }
        let norm = !op.kind.is_linear();
        let stored = made.into_iter().zip(&op.params).map(|(storage, &param)| {
            let (storage, dtype) = if norm { self.partial(storage, input.dtype) } else { (storage, input.dtype) };
            let to = self.leaves.dtype.unwrap_or(dtype);
            (frame.params.index(param), self.cast_gradient(storage, dtype, to), to)
        });
        let stored = stored.collect();
        self.program.enter(outside);
        stored
    }
}
