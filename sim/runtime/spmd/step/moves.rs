//! What is on its way to matmuls and from them, on GPUs: weights to be gathered, gradients to be reduced.

use std::collections::VecDeque;

use crate::runtime::spmd::tape::Value;

/// A weight by its layer and its place in the layer's block; the head's layer is behind the last.
pub(super) type Place = (usize, usize);

/// A use of a weight by a matmul.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub(super) place: Place,
    /// Numbers of the whole.
    pub(super) numbers: u64,
    /// Numbers on this chip.
    pub(super) own: u64,
}

/// A gradient on its way: its value, and the numbers of the whole and of this chip's part.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) value: Value,
    pub(super) numbers: u64,
    pub(super) own: u64,
}

/// What is on its way to matmuls, and from them.
#[derive(Default)]
pub(super) struct Moves {
    /// Uses of weights whose all-gather has not begun, in order.
    pub(super) uses: VecDeque<Use>,
    /// Weights that are gathered, or about to be.
    pub(super) ready: Vec<(Place, Value)>,
    /// The first weight of the group gathered last: its use begins the next.
    pub(super) newest: Option<Place>,
    /// Gradients of weights that are not reduced yet.
    pub(super) whole: Vec<Part>,
    /// This chip's parts of gradients that are not summed over replicas yet.
    pub(super) parts: Vec<Part>,
}
