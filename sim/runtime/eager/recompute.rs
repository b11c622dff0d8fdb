//! A checkpointed forward that is recomputed in backward, this time saving.

use super::frame::Results;
use super::{Eager, Frame, Storage};
use crate::model::experts::ExpertOp;
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::operators::Stop;
use crate::program::{Category, Pass};

/// A recompute under way.
#[derive(Debug)]
pub struct Recompute {
    pass: Pass,
    category: Category,
    /// What the policy has kept, and where the next operator's part of it begins.
    kept: Vec<Storage>,
    kept_start: usize,
    /// The first operator that does not run.
    stop: usize,
}

impl Eager {
    /// Runs all of it; called when backward first needs something of it.
    pub(super) fn recompute(&mut self, graph: &Graph, frame: &mut Frame) {
        let mut recompute = self.begin_recompute(graph, frame);
        self.recompute_ops(graph, frame, &mut recompute, 0..graph.ops.len());
        self.end_recompute(frame, recompute);
    }

    /// Starts a recompute whose operators [`Eager::recompute_ops`] then runs in parts.
    pub fn begin_recompute(&mut self, graph: &Graph, frame: &mut Frame) -> Recompute {
        let (pass, category) = (self.program.set_pass(Pass::Recompute), self.category);
        self.category = Category::Recompute;
        if let (Some(sent), Some(offload)) = (frame.sent.take(), self.settings.offload) {
            frame.input = self.bring_back(sent, offload);
        }
        frame.slots[0] = Some(frame.input);
        self.autocast_resumes();
        let stop = if self.settings.early_stop { self.stops_at(graph) } else { graph.ops.len() };
        Recompute { pass, category, kept: std::mem::take(&mut frame.kept), kept_start: 0, stop }
    }

    /// Runs a range of its operators: each range begins where the one before ended.
    pub fn recompute_ops(
        &mut self,
        graph: &Graph,
        frame: &mut Frame,
        recompute: &mut Recompute,
        range: std::ops::Range<usize>,
    ) {
        for index in range {
            let op = &graph.ops[index];
            let kept_end = frame.kept_end[index] as usize;
            let cached = &recompute.kept[recompute.kept_start..kept_end];
            recompute.kept_start = kept_end;
            if index < recompute.stop {
                let dispatch = self.settings.forward;
                self.op_begins(frame, index, false);
                let results = if graph.is_node(op) { Results::Save } else { Results::Forget };
                self.run(graph, op, frame, results, dispatch, cached);
                if results == Results::Forget {
                    frame.saved_end.push(frame.saved.len() as u32);
                }
                if !(self.hooks_modules() && self.settings.early_stop && index + 1 == recompute.stop) {
                    self.op_ended(frame, index, false);
                }
                self.drop_python_references(op, frame);
            } else {
                if index == recompute.stop {
                    self.save_inputs(graph, op, frame);
                }
                frame.saved_end.push(frame.saved.len() as u32);
                // The policy's cache outlives a recompute that stops early.
                frame.kept.extend_from_slice(cached);
            }
        }
    }

    /// Ends it: Python lets go of whatever it still held.
    pub fn end_recompute(&mut self, frame: &mut Frame, recompute: Recompute) {
        frame.slots[0] = None;
        for slot in frame.slots.iter_mut().skip(1) {
            if let Some(storage) = slot.take() {
                self.release(storage);
            }
        }
        if !frame.holds_input {
            // What came back from the host is the recompute's own: only what saved it holds it now.
            self.release(frame.input);
        }
        self.autocast_ends();
        frame.recomputed = true;
        self.program.set_pass(recompute.pass);
        self.category = recompute.category;
    }

    /// Saves the inputs that an operator packs before it runs.
    fn save_inputs(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        if graph.stop(op) != Stop::Before {
            return;
        }
        if op.kind == OpKind::Experts(ExpertOp::Combine) {
            // What the rows would have been added to is there already.
            let zeros = self.storage(graph.values[op.outputs[0]].bytes(), "aten.zeros_like");
            self.release(zeros);
        }
        self.save_own(op, frame, &graph.saves(op));
    }
}
