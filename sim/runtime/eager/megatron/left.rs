//! Weight gradients yet to be made: what they are made by, and of what.

use super::super::Storage;
use super::super::shape::MatmulShape;
use super::expert_sizes::Sizes;
use crate::program::{DType, Owner};

/// What a weight's gradient is made by.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime::eager) enum Left {
    /// One matmul of a shape.
    Linear(MatmulShape, DType),
    /// Those of a rank's experts.
    Grouped(Sizes),
}

/// A module's weight gradients yet to be made.
#[derive(Debug)]
pub struct Later {
    pub(super) left: Left,
    /// What is multiplied.
    pub(super) held: Vec<Storage>,
    pub(super) params: Vec<usize>,
    /// The part of the model that the module belongs to.
    pub(super) owner: Owner,
}
