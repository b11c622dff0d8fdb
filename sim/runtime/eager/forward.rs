//! Runs the forward of a graph: its operators in order, with what is kept of them and what is let go of.

use super::frame::Results;
use super::keep::Keep;
use super::{Eager, Frame, Mode, ParamMap, Storage};
use crate::model::graph::{Graph, ValueId};
use crate::program::MemoryKind;

impl Eager {
    /// Runs a graph's forward on `input` (whose reference stays the caller's). `params` says which of the
    /// model's parameters the graph's are. Returns the frame for backward and the output, with one reference.
    pub fn forward(&mut self, graph: &Graph, input: Storage, params: ParamMap, mode: Mode) -> (Frame, Storage) {
        let mut frame = self.frame(graph, input, params, mode);
        self.forward_ops(graph, &mut frame, 0..graph.ops.len());
        let output = self.finish_forward(graph, &mut frame);
        (frame, output)
    }

    /// A frame before its first operator.
    pub fn frame(&mut self, graph: &Graph, input: Storage, params: ParamMap, mode: Mode) -> Frame {
        let mut sent = None;
        let checkpoint = match mode {
            Mode::Train => None,
            Mode::Checkpoint(keep) => {
                match self.settings.offload {
                    None => _ = self.retain(input),
                    Some(offload) => sent = Some(self.send(input, offload)),
                }
                Some(keep)
            }
        };
        let mut frame = Frame { checkpoint, holds_input: sent.is_none(), sent, ..Frame::empty(graph, input, params) };
        frame.slots[0] = Some(input);
        frame
    }

    /// Puts a further input of a graph in place; its reference stays the caller's, who takes it back before the end.
    pub fn give(&mut self, frame: &mut Frame, value: usize, storage: Option<Storage>) {
        frame.slots[value] = storage;
    }

    /// Takes a further output of a graph.
    pub fn take(&mut self, frame: &mut Frame, value: usize) -> Option<Storage> {
        frame.slots[value].take()
    }

    /// Copies a value of a running frame; the copy takes its place.
    pub fn clone_value(&mut self, graph: &Graph, frame: &mut Frame, value: ValueId) {
        let Some(before) = frame.slots[value] else { return };
        let bytes = graph.values[value].bytes();
        let copy = self.storage(bytes, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.forward);
        frame.slots[value] = Some(copy);
        self.release(before);
    }

    /// Runs a range of a graph's operators.
    pub fn forward_ops(&mut self, graph: &Graph, frame: &mut Frame, range: std::ops::Range<usize>) {
        for index in range {
            let op = &graph.ops[index];
            let dispatch = self.settings.forward;
            let part = Self::recomputed_part(graph, frame, index);
            if let Some(at) = part {
                self.hold_inputs(graph, frame, at, index);
            }
            let forgets = part.is_some() || !graph.is_node(op);
            let results = match frame.checkpoint {
                None if forgets => Results::Forget,
                None => Results::Save,
                Some(Keep::ComputeIntensive) if graph.keeps(index) => Results::Keep,
                Some(Keep::Saved(ops)) if ops.keeps(graph, index) => Results::Keep,
                Some(_) => Results::Forget,
            };
            self.op_begins(frame, index, false);
            self.run(graph, op, frame, results, dispatch, &[]);
            self.op_ended(frame, index, false);
            if forgets && frame.checkpoint.is_none() {
                frame.saved_end.push(frame.saved.len() as u32);
            }
            self.let_results_go(graph, frame, index);
            if frame.checkpoint.is_some() {
                frame.kept_end.push(frame.kept.len() as u32);
            }
            self.drop_python_references(op, frame);
        }
    }

    /// Ends a forward: the output, with one reference.
    pub fn finish_forward(&mut self, graph: &Graph, frame: &mut Frame) -> Storage {
        frame.slots[0] = None;
        frame.slots[graph.output].take().expect("a graph's output is made by its last operators")
    }
}
