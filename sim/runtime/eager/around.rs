//! What a framework does around the operators of a model that it takes as it is: hooks on modules, and on gradients.

pub use super::state::{Around, Place};

use super::{Eager, Frame};
use crate::model::graph::{Graph, Op};
use crate::model::operators::Stop;
use crate::program::{Dispatch, MemoryKind};

impl Eager {
    /// Calls the framework, whose hooks may change everything but themselves.
    pub(super) fn call(&mut self, what: impl FnOnce(&mut dyn Around, &mut Eager)) {
        let Some(mut around) = self.framework.hooks_mut().and_then(Option::take) else { return };
        what(around.as_mut(), self);
        if let Some(hooks) = self.framework.hooks_mut() {
            *hooks = Some(around);
        }
    }

    /// Whether modules' hooks are nodes of autograd's graph, and linears a function written in Python, as under DeepSpeed's
    /// ZeRO-3.
    pub(super) fn hooks_modules(&self) -> bool {
        self.framework.deepspeed().is_some_and(|deepspeed| deepspeed.hooks_modules)
    }

    pub(super) fn op_begins(&mut self, frame: &Frame, op: usize, backward: bool) {
        let at = Place { graph: frame.params.first, op, backward };
        self.call(|around, eager| around.begins(eager, at));
    }

    pub(super) fn op_ended(&mut self, frame: &Frame, op: usize, backward: bool) {
        let at = Place { graph: frame.params.first, op, backward };
        self.call(|around, eager| around.ended(eager, at));
    }

    /// Whether an operator's backward says itself that its module has ended ([`Eager::hooks_modules`]).
    pub(super) fn ends_itself(&self, op: &Op) -> bool {
        self.hooks_modules() && (op.kind.is_linear() || (op.kind.normed_rows().is_some() && !self.in_parts(op)))
    }

    /// The last operator that a recompute with early stop runs: a linear written in Python saves when it has run.
    pub(super) fn stops_at(&self, graph: &Graph) -> usize {
        let stop = early_stop_at(graph);
        let saves_late = |op: &Op| self.hooks_modules() && op.kind.is_linear();
        stop + usize::from(graph.ops.get(stop).is_some_and(saves_late))
    }

    /// A bias, added in place where linears are a function in Python.
    pub(super) fn add_bias(&mut self, op: &Op, bytes: u64, dispatch: Dispatch) {
        if op.params.len() > 1 {
            self.pointwise("aten.add_", MemoryKind::Elementwise, bytes, bytes, dispatch);
        }
    }

    /// Says so.
    pub(super) fn module_ended(&mut self, frame: &Frame, op: usize) {
        if self.hooks_modules() {
            self.op_ended(frame, op, true);
        }
    }
}

/// The last operator that a recompute with early stop runs: everything before the last operator that saves a value made
/// before it runs. The autograd node of a matmul packs its input before the kernel runs, and the recompute stops there.
fn early_stop_at(graph: &Graph) -> usize {
    let last = graph.ops.iter().rposition(|op| graph.stop(op) != Stop::Nowhere).unwrap_or(0);
    match graph.ops[last].row().stop {
        Stop::Before => last,
        Stop::After | Stop::Nowhere => last + 1,
    }
}
