//! Selective recompute: parts of a graph that are recomputed in backward on their own, as Megatron-Core checkpoints parts of a
//! block (`core/tensor_parallel/random.py`, `CheckpointFunction` and `CheckpointWithoutOutput`, 0.16.1). Of a whole graph it is
//! [`recompute`](super::recompute), or [`reentrant`](super::reentrant).
//!
//! In forward nothing of a part is saved but what it reads. Backward recomputes it before it comes to its last operator, on a
//! frame of its own. Where results are let go of, too, whoever saved one keeps its name: memory is taken for it anew, and
//! the result of the second run copied there, when the gradient of a later operator's result is known.

use super::frame::{Held, Node, Results};
use super::megatron::second_run::reduces;
use super::storage::Gradient;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Recomputed, ValueId};
use crate::program::{Category, MemoryKind, Pass};

impl Held {
    fn results(graph: &Graph, part: &Recomputed) -> Vec<ValueId> {
        let made = |value: &ValueId| graph.ops[part.ops.clone()].iter().any(|op| op.outputs.contains(value));
        let mut read: Vec<ValueId> =
            graph.ops[part.ops.end..].iter().flat_map(|op| &op.inputs).copied().filter(made).collect();
        read.sort_unstable();
        read.dedup();
        read
    }
}

impl Eager {
    /// Which of a graph's recomputed parts an operator is in, if it is in one.
    pub(super) fn recomputed_part(graph: &Graph, frame: &Frame, index: usize) -> Option<usize> {
        graph.recomputed.iter().position(|part| part.ops.contains(&index)).filter(|_| frame.checkpoint.is_none())
    }

    /// Before an operator's forward: if it is the first of a part, the part's checkpoint holds what all of it will read.
    pub(super) fn hold_inputs(&mut self, graph: &Graph, frame: &mut Frame, at: usize, index: usize) {
        let part = &graph.recomputed[at];
        if part.ops.start != index {
            return;
        }
        let mut inputs: Vec<ValueId> = graph.ops[part.ops.clone()].iter().flat_map(|op| &op.inputs).copied().collect();
        inputs.sort_unstable();
        inputs.dedup();
        let live = |&value: &ValueId| frame.slots[value].map(|storage| (value, storage));
        let inputs: Vec<_> = inputs.iter().filter_map(live).collect();
        inputs.iter().for_each(|&(_, storage)| _ = self.retain(storage));
        frame.held.resize_with(graph.recomputed.len(), Held::default);
        frame.held[at].inputs = inputs;
    }

    /// After an operator's forward: results that somebody lets go of now, and masks that a checkpoint kept while it ran.
    pub(super) fn let_results_go(&mut self, graph: &Graph, frame: &mut Frame, index: usize) {
        if frame.checkpoint.is_some() {
            return;
        }
        for (at, part) in graph.recomputed.iter().enumerate() {
            if part.ops.end == index + 1 {
                self.let_go_of_lingering();
                if part.until.is_some() {
                    let results = Held::results(graph, part);
                    let named = results.into_iter().filter_map(|value| frame.slots[value]).collect::<Vec<_>>();
                    frame.held[at].results = named.into_iter().map(|storage| self.retain(storage)).collect();
                }
            }
            if part.until == Some(index) {
                frame.held[at].results.clone().into_iter().for_each(|storage| self.discard(storage));
            }
        }
    }

    /// Before an operator's backward: what is due is recomputed.
    pub(super) fn recompute_before(&mut self, graph: &Graph, frame: &mut Frame, index: usize) {
        if frame.checkpoint.is_some() {
            return;
        }
        let due = |part: &Recomputed| part.until.unwrap_or(part.ops.end - 1) == index;
        // What was let go of comes first: the others may read it.
        for first in [true, false] {
            for (at, _) in
                graph.recomputed.iter().enumerate().filter(|(_, one)| due(one) && one.until.is_some() == first)
            {
                self.recompute_part(graph, frame, at);
            }
        }
    }

    fn recompute_part(&mut self, graph: &Graph, frame: &mut Frame, at: usize) {
        let part = &graph.recomputed[at];
        let (pass, category) = (self.program.set_pass(Pass::Recompute), self.category);
        self.category = Category::Recompute;
        let mut inner = Frame::empty(graph, frame.input, frame.params);
        inner.saved_end = vec![0; part.ops.start];
        for &(value, storage) in &frame.held[at].inputs {
            inner.slots[value] = Some(self.retain(storage));
        }
        let dispatch = self.settings.forward;
        for op in &graph.ops[part.ops.clone()] {
            self.run(graph, op, &mut inner, Results::Save, dispatch, &[]);
            self.drop_python_references(op, &mut inner);
        }
        if part.until.is_none() {
            self.reduce_maxima();
        }
        let results = Held::results(graph, part);
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
        let part = &graph.recomputed[at];
        let Held { inputs, frame: inner, .. } = std::mem::take(&mut frame.held[at]);
        let Some(mut inner) = inner else { return };
        let mut given = vec![];
        for value in Held::results(graph, part) {
            let Some(gradient) = frame.gradients[value].take() else { continue };
            given.push(self.retain(gradient.storage));
            inner.gradients[value] = Some(gradient);
        }
        for step in 0..part.ops.len() {
            let index = graph.back(&part.ops, step);
            self.node(Node { graph, op: &graph.ops[index], index }, &mut inner);
            if part.until.is_none() && reduces(graph, part.ops.start, index) {
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
