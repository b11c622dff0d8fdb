//! A module's parameters: their shape, what each is for, how it is stored and whether it is trained.

use crate::model::packed::Packed;
use crate::program::DType;

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

/// How a parameter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// In the type that a job stores parameters in.
    Plain,
    /// In a type of its own.
    As(DType),
    /// Packed.
    Packed(Packed),
}

impl Stored {
    /// The tensors that so many elements are stored as, where others have so many bytes \[B\].
    pub fn tensors(self, elements: u64, plain: u64) -> Vec<u64> {
        match self {
            Stored::Plain => vec![elements * plain],
            Stored::As(dtype) => vec![elements * dtype.bytes()],
            Stored::Packed(packed) => packed.tensors(elements),
        }
    }
}

/// A parameter of a module; sharded on its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name within the module, such as `attention.wq.weight`.
    pub name: &'static str,
    /// Dimension 0.
    pub rows: u64,
    /// All other dimensions together.
    pub cols: u64,
    /// All of its dimensions.
    pub shape: Shape,
    /// What it is for, as the module that registers it says.
    pub role: Role,
    /// Whether it is trained (`requires_grad`).
    pub trained: bool,
    /// How it is stored.
    pub stored: Stored,
}

impl Param {
    /// A matrix with a purpose; of one column, a vector, which has no other.
    pub fn of(name: &'static str, (rows, cols): (u64, u64), role: Role) -> Param {
        let role = if cols == 1 { Role::Vector } else { role };
        Param { name, rows, cols, shape: Shape::matrix(rows, cols), role, trained: true, stored: Stored::Plain }
    }

    /// Weights of `count` routed experts, one behind the other.
    pub fn of_experts(name: &'static str, count: u64, (rows, cols): (u64, u64)) -> Param {
        let shape = Shape { matrices: count, rows, cols };
        Param { name, rows: count, cols: rows * cols, shape, role: Role::Expert, trained: true, stored: Stored::Plain }
    }

    /// Elements.
    pub fn elements(&self) -> u64 {
        self.rows * self.cols
    }
}
