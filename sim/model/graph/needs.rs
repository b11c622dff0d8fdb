//! Which values need a gradient, where not every parameter is trained (`requires_grad`), and what autograd then saves.
//!
//! A result needs one if a value or a parameter that its operator reads does. Of a product each factor is saved for the other's
//! gradient alone (`tools/autograd/gen_variable_type.py`, `should_compute_output`).

use super::{Graph, Op, OpKind, ValueId};
use crate::model::operators::{Gradients, Of, Stop};

impl Graph {
    /// Finds what needs a gradient, if its input does or does not.
    pub fn find_needs(&mut self, input: bool) {
        let mut needs = vec![false; self.values.len()];
        needs[0] = input;
        for op in &self.ops {
            let differentiable = !matches!(op.kind, OpKind::Simple(simple) if simple.gradients == Gradients::Nothing);
            let trained = op.params.iter().any(|&param| self.params[param].trained);
            let needed = differentiable && (trained || op.inputs.iter().any(|&value| needs[value]));
            op.outputs.iter().for_each(|&value| needs[value] = needed);
        }
        self.needs = needs;
    }

    /// Whether a value needs a gradient.
    pub fn needs(&self, value: ValueId) -> bool {
        self.needs.get(value).copied().unwrap_or(true)
    }

    /// Whether an operator is a node of autograd's graph.
    pub fn is_node(&self, op: &Op) -> bool {
        op.outputs.iter().any(|&value| self.needs(value))
    }

    /// Whether an operator's parameter is trained.
    pub fn trains(&self, op: &Op, at: usize) -> bool {
        op.params.get(at).is_some_and(|&param| self.params[param].trained)
    }

    /// Whether anything is frozen, so that some gradients are not made.
    pub fn is_partial(&self) -> bool {
        !self.needs.is_empty()
    }

    /// What autograd saves of an operator's inputs and outputs.
    pub fn saves(&self, op: &Op) -> Vec<Of> {
        let needs = |at: usize| op.inputs.get(at).is_none_or(|&value| self.needs(value));
        let kept = |of: &Of| match (op.kind, of) {
            (OpKind::Linear { .. }, Of::Input(0)) if !op.params.is_empty() => self.trains(op, 0),
            (OpKind::Linear { .. }, Of::Input(0)) => needs(1),
            (OpKind::Linear { .. }, Of::Input(_)) => needs(0),
            (OpKind::MUL | OpKind::Bmm { .. }, Of::Input(at)) => needs(1 - at),
            _ => true,
        };
        op.row().saves.iter().copied().filter(kept).collect()
    }

    /// Whether an operator's backward unpacks something saved. What multiplies by a number, or casts, saves no tensor.
    pub fn unpacks(&self, op: &Op) -> bool {
        let saves_none = matches!(op.kind, OpKind::Simple(simple) if simple.saves.is_empty());
        op.row().unpacks && (!self.is_partial() || (self.is_node(op) && !saves_none))
    }

    /// Where a recompute with early stop ends, if an operator is the last that saves something. A linear saves its weight for the
    /// gradient of its input.
    pub fn stop(&self, op: &Op) -> Stop {
        if self.is_node(op) { op.row().stop } else { Stop::Nowhere }
    }
}
