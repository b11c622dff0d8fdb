//! What an optimizer is told of a parameter: the shape of all of it, the part that the rank steps, and what it is for.

use crate::program::GroupId;

/// The dimensions of a tensor: matrices of so many rows and columns. A vector is one matrix of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many matrices there are: one, or one for each expert.
    pub matrices: u64,
    /// Rows of each.
    pub rows: u64,
    /// Columns of each.
    pub cols: u64,
}

impl Shape {
    /// One matrix.
    pub const fn matrix(rows: u64, cols: u64) -> Shape {
        Shape { matrices: 1, rows, cols }
    }

    /// One dimension.
    pub const fn vector(elements: u64) -> Shape {
        Shape::matrix(elements, 1)
    }

    /// Elements.
    pub fn elements(self) -> u64 {
        self.matrices * self.rows * self.cols
    }

    /// Whether it has one dimension.
    pub fn is_vector(self) -> bool {
        self.matrices == 1 && self.cols == 1
    }
}

/// What a parameter is for: optimizers treat some unlike others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The weight of a linear.
    Matrix,
    /// A norm's weight, or a bias.
    Vector,
    /// A table with a row for each word or position: an embedding, or the head.
    Table,
    /// Weights of routed experts.
    Expert,
    /// One of the two narrow matrices beside a frozen weight (LoRA).
    Adapter,
    /// Several parameters laid end to end: the optimizer sees one vector.
    Flat,
}

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
