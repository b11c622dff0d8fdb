//! What an optimizer is told of a parameter: the shape of all of it, the part that the rank steps, and what it is for.

pub use crate::model::graph::{Role, Shape};
use crate::program::GroupId;

/// A parameter and what a rank owns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The whole parameter; of one that tensor-parallel ranks split, this rank's part.
    pub shape: Shape,
    /// What the rank steps of it, as a tensor: some rows or columns, or a flat stretch.
    pub shard: Shape,
    /// What it is for.
    pub role: Role,
    /// The ranks that own the rest of it; none where this one owns all, or nobody else knows its shape.
    pub over: Option<GroupId>,
}

impl Owned {
    /// A parameter of which this rank owns all.
    pub fn whole(shape: Shape, role: Role) -> Owned {
        Owned { shape, shard: shape, role, over: None }
    }

    /// A parameter of which this rank owns a stretch of so many elements.
    pub fn stretch(shape: Shape, role: Role, elements: u64) -> Owned {
        Owned { shard: Shape::vector(elements), ..Owned::whole(shape, role) }
    }

    /// So many elements of parameters laid end to end.
    pub fn flat(elements: u64) -> Owned {
        Owned::whole(Shape::vector(elements), Role::Flat)
    }

    /// Elements that the rank owns.
    pub fn elements(&self) -> u64 {
        self.shard.elements()
    }
}

/// Elements that the rank owns of all of them.
pub fn elements(params: &[Owned]) -> u64 {
    params.iter().map(Owned::elements).sum()
}
