//! The two rules that make a way for ranks to share a sequence.

use super::super::super::{Eager, Storage};
use super::way::Context;
use crate::model::graph::{Graph, Op};

/// The context, and what backward needs, in the order in which it lets go of it. Queries, keys and values are the caller's.
pub(super) type Forward = fn(&mut Eager, &Graph, &Op, Context, [Storage; 3]) -> (Storage, Vec<Storage>);
/// Gradients of queries, keys and values.
pub(super) type Gradients = fn(&mut Eager, &Graph, &Op, Context) -> [Storage; 3];

/// What a way does forward and backward.
#[derive(Clone, Copy)]
pub(in crate::runtime::eager::megatron) struct Rules {
    pub(in crate::runtime::eager::megatron) forward: Forward,
    pub(in crate::runtime::eager::megatron) gradients: Gradients,
}
