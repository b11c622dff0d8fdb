//! Operators of a graph that run again in backward on their own, as Megatron-Core checkpoints parts of a block
//! (`core/tensor_parallel/random.py`, `CheckpointFunction` and `CheckpointWithoutOutput`, 0.16.1).
//!
//! In forward nothing of them is saved but what they read. Backward runs them again before it comes to the last of them, on a
//! frame of their own. Where results are let go of, too, whoever saved one keeps its name: memory is taken for it anew, and
//! the result of the second run copied there, when the gradient of a later operator's result is known.
//!
//! In fp8 the checkpoint is Transformer Engine's (`pytorch/distributed.py`, `_CheckpointFunction`, 2.9), whose second run enters
//! and leaves fp8 anew: under scales of earlier steps it reduces maxima at its end, and once more after the backward of each
//! linear in it up to the first norm or grouped linear, and of that (`module/linear.py`, `module/grouped_linear.py`,
//! `ops/fuser.py`: a linear of a second run leaves it open which module is the first).

use super::frame::{Held, Node, Results};
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Again, Graph, Op, OpKind, ValueId};
use crate::model::megatron::Reduces;
use crate::program::{Category, MemoryKind, Pass};

impl Held {
    fn results(graph: &Graph, again: &Again) -> Vec<ValueId> {
        let made = |value: &ValueId| graph.ops[again.ops.clone()].iter().any(|op| op.outputs.contains(value));
        let mut read: Vec<ValueId> =
            graph.ops[again.ops.end..].iter().flat_map(|op| &op.inputs).copied().filter(made).collect();
        read.sort_unstable();
        read.dedup();
        read
    }
}

/// Whether an operator takes the turn of those behind it in a second run.
fn takes_turn(op: &Op) -> bool {
    matches!(op.kind, OpKind::Megatron(kind) if kind.reduces() == Reduces::AndEnds)
}

/// Whether an operator of a second run that begins at `first`, if it is in fp8, reduces maxima after its backward.
pub(super) fn reduces(graph: &Graph, first: usize, index: usize) -> bool {
    let reduces = matches!(graph.ops[index].kind, OpKind::Megatron(kind) if kind.reduces() != Reduces::Never);
    reduces && !graph.ops[first..index].iter().any(takes_turn)
}

impl Eager {
    /// Whether a block run again leaves no reduction of maxima to blocks behind it in the same second run.
    pub fn ends_turns(graph: &Graph) -> bool {
        graph.ops.iter().any(takes_turn)
    }

    /// Which of a graph's checkpoints an operator is in, if it runs again on its own.
    pub(super) fn runs_again(graph: &Graph, frame: &Frame, index: usize) -> Option<usize> {
        graph.again.iter().position(|again| again.ops.contains(&index)).filter(|_| frame.checkpoint.is_none())
    }

    /// Before an operator's forward: its checkpoint, if it is the first of one, holds what all of them will read.
    pub(super) fn hold_inputs(&mut self, graph: &Graph, frame: &mut Frame, at: usize, index: usize) {
        let again = &graph.again[at];
        if again.ops.start != index {
            return;
        }
        let mut inputs: Vec<ValueId> = graph.ops[again.ops.clone()].iter().flat_map(|op| &op.inputs).copied().collect();
        inputs.sort_unstable();
        inputs.dedup();
        let live = |&value: &ValueId| frame.slots[value].map(|storage| (value, storage));
        let inputs: Vec<_> = inputs.iter().filter_map(live).collect();
        inputs.iter().for_each(|&(_, storage)| _ = self.retain(storage));
        frame.held.resize_with(graph.again.len(), Held::default);
        frame.held[at].inputs = inputs;
    }

    /// After an operator's forward: results that somebody lets go of now, and masks that a checkpoint kept while it ran.
    pub(super) fn let_results_go(&mut self, graph: &Graph, frame: &mut Frame, index: usize) {
        if frame.checkpoint.is_some() {
            return;
        }
        for (at, again) in graph.again.iter().enumerate() {
            if again.ops.end == index + 1 {
                self.let_go_of_lingering();
                if again.until.is_some() {
                    let results = Held::results(graph, again);
                    let named = results.into_iter().filter_map(|value| frame.slots[value]).collect::<Vec<_>>();
                    frame.held[at].results = named.into_iter().map(|storage| self.retain(storage)).collect();
                }
            }
            if again.until == Some(index) {
                frame.held[at].results.clone().into_iter().for_each(|storage| self.discard(storage));
            }
        }
    }

    /// Before an operator's backward: what runs again for it does.
    pub(super) fn run_again_before(&mut self, graph: &Graph, frame: &mut Frame, index: usize) {
        if frame.checkpoint.is_some() {
            return;
        }
        let due = |again: &Again| again.until.unwrap_or(again.ops.end - 1) == index;
        // What was let go of comes first: the others may read it.
        for first in [true, false] {
            for (at, _) in graph.again.iter().enumerate().filter(|(_, one)| due(one) && one.until.is_some() == first) {
                self.run_part_again(graph, frame, at);
            }
        }
    }

    fn run_part_again(&mut self, graph: &Graph, frame: &mut Frame, at: usize) {
        let again = &graph.again[at];
        let (pass, category) = (self.program.set_pass(Pass::Recompute), self.category);
        self.category = Category::Recompute;
        let mut inner = Frame::empty(graph, frame.input, frame.params);
        inner.saved_end = vec![0; again.ops.start];
        for &(value, storage) in &frame.held[at].inputs {
            inner.slots[value] = Some(self.retain(storage));
        }
        let dispatch = self.settings.forward;
        for op in &graph.ops[again.ops.clone()] {
            self.run(graph, op, &mut inner, Results::Save, dispatch, &[]);
            self.drop_python_references(op, &mut inner);
        }
        if again.until.is_none() {
            self.reduce_maxima();
        }
        let results = Held::results(graph, again);
        for (value, slot) in inner.slots.iter_mut().enumerate() {
            if let Some(storage) = slot.take_if(|_| !results.contains(&value)) {
                self.release(storage);
            }
        }
        for named in std::mem::take(&mut frame.held[at].results) {
            let bytes = self.restore(named);
            self.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, dispatch);
            self.release(named);
        }
        frame.held[at].frame = Some(Box::new(inner));
        self.program.set_pass(pass);
        self.category = category;
    }

    /// The backward of all operators of a checkpoint, from the gradients of their results to those of what they read.
    pub(super) fn part_backward(&mut self, graph: &Graph, frame: &mut Frame, at: usize) {
        let again = &graph.again[at];
        let Held { inputs, frame: inner, .. } = std::mem::take(&mut frame.held[at]);
        let Some(mut inner) = inner else { return };
        let mut given = vec![];
        for value in Held::results(graph, again) {
            let Some(gradient) = frame.gradients[value].take() else { continue };
            given.push(self.retain(gradient.storage));
            inner.gradients[value] = Some(gradient);
        }
        for step in 0..again.ops.len() {
            let index = graph.back(&again.ops, step);
            self.node(Node { graph, op: &graph.ops[index], index }, &mut inner);
            if again.until.is_none() && reduces(graph, again.ops.start, index) {
                self.reduce_maxima();
            }
        }
        let made: Vec<_> =
            inputs.iter().map(|&(value, _)| inner.gradients[value].take().map(|made| (value, made))).collect();
        let results = inner.slots.iter_mut().filter_map(Option::take).collect::<Vec<_>>();
        for storage in results.into_iter().chain(given).chain(inputs.iter().map(|&(_, storage)| storage)) {
            self.release(storage);
        }
        for (value, Gradient { storage, .. }) in made.into_iter().flatten() {
            self.accumulate(frame, value, storage.into());
        }
    }

    /// Gives memory back that somebody still names.
    fn discard(&mut self, storage: Storage) {
        let buffer = self.storages.counted[storage.0 as usize].buffer;
        self.program.free(buffer);
    }

    /// Takes memory anew for what was let go of; how much \[B\].
    fn restore(&mut self, storage: Storage) -> u64 {
        let bytes = self.bytes(storage);
        let buffer = self.program.alloc(crate::units::Bytes(bytes), self.stream, self.category, "aten.resize_");
        self.storages.counted[storage.0 as usize].buffer = buffer;
        bytes
    }
}
