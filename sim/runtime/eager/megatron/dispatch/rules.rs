//! Rules of the operators that only one dispatcher has ([`RoutedOp::Own`](crate::model::megatron::RoutedOp::Own)).

use super::super::super::frame::{Node, Results};
use super::super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::Routed;

/// Forward of an operator by its step's name.
pub(super) type Forward = fn(&mut Eager, &Graph, &Op, &'static str, Routed, &mut Frame, Results);
/// Its backward.
pub(super) type Backward = fn(&mut Eager, Node<'_>, &'static str, Routed, &mut Frame, Storage);

/// What a dispatcher's own operators do forward and backward.
#[derive(Clone, Copy)]
pub(in crate::runtime::eager::megatron) struct Rules {
    pub(in crate::runtime::eager::megatron) forward: Forward,
    pub(in crate::runtime::eager::megatron) backward: Backward,
}

impl Rules {
    /// For a dispatcher all of whose operators others have, too.
    pub(super) const NONE: Rules = Rules { forward: no_forward, backward: no_backward };
}

fn no_forward(_: &mut Eager, _: &Graph, _: &Op, step: &'static str, _: Routed, _: &mut Frame, _: Results) {
    unreachable!("a dispatcher without operators of its own writes none down: {step}")
}

fn no_backward(_: &mut Eager, _: Node<'_>, step: &'static str, _: Routed, _: &mut Frame, _: Storage) {
    unreachable!("a dispatcher without operators of its own writes none down: {step}")
}
