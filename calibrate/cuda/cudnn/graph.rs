//! A graph of operations on tensors, as plain data: written down without cuDNN, checked by tests, then turned into
//! descriptors.
//!
//! Every tensor has four dimensions. A tensor that is *bound* has memory when the graph runs, a *virtual* one never
//! leaves the kernel, a *constant* is one number that travels with the call.

use cudarc::cudnn::sys;

use sys::cudnnDataType_t as DataType;
use sys::cudnnPointwiseMode_t as Pointwise;
use sys::cudnnReduceTensorOp_t as Reduction;

/// A tensor of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tensor(pub(super) usize);

impl Tensor {
    /// The number by which cuDNN knows it.
    pub(super) fn uid(self) -> i64 {
        self.0 as i64 + 1
    }
}

/// Number formats of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// 16 bits, eight of them exponent.
    Bf16,
    /// 32-bit float.
    Fp32,
    /// 32-bit integer.
    Int32,
    /// True or false.
    Boolean,
}

impl Type {
    /// As cuDNN numbers it.
    pub(super) fn code(self) -> u32 {
        (match self {
            Self::Bf16 => DataType::CUDNN_DATA_BFLOAT16,
            Self::Fp32 => DataType::CUDNN_DATA_FLOAT,
            Self::Int32 => DataType::CUDNN_DATA_INT32,
            Self::Boolean => DataType::CUDNN_DATA_BOOLEAN,
        }) as u32
    }
}

/// What a tensor is to the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    Bound,
    Virtual,
    Constant(f32),
}

/// A tensor, in full.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Described {
    pub name: &'static str,
    pub dims: [i64; 4],
    pub strides: [i64; 4],
    pub dtype: Type,
    pub role: Role,
}

/// A pointwise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `x + b`.
    Add,
    /// `x − b`.
    Subtract,
    /// `x · b`.
    Multiply,
    /// `x / b`.
    Divide,
    /// `exp x`.
    Exp,
    /// `log x`.
    Log,
    /// `x`, in another format.
    Identity,
    /// `x ≥ b`.
    AtLeast,
    /// `x > b`.
    Above,
    /// The index of an element along an axis, whatever `x` holds.
    Index(u8),
    /// `x` where `t`, else `b`.
    Select,
}

impl Mode {
    pub(super) fn code(self) -> u32 {
        (match self {
            Self::Add => Pointwise::CUDNN_POINTWISE_ADD,
            Self::Subtract => Pointwise::CUDNN_POINTWISE_SUB,
            Self::Multiply => Pointwise::CUDNN_POINTWISE_MUL,
            Self::Divide => Pointwise::CUDNN_POINTWISE_DIV,
            Self::Exp => Pointwise::CUDNN_POINTWISE_EXP,
            Self::Log => Pointwise::CUDNN_POINTWISE_LOG,
            Self::Identity => Pointwise::CUDNN_POINTWISE_IDENTITY,
            Self::AtLeast => Pointwise::CUDNN_POINTWISE_CMP_GE,
            Self::Above => Pointwise::CUDNN_POINTWISE_CMP_GT,
            Self::Index(_) => Pointwise::CUDNN_POINTWISE_GEN_INDEX,
            Self::Select => Pointwise::CUDNN_POINTWISE_BINARY_SELECT,
        }) as u32
    }

    /// In which format it computes.
    pub(super) fn precision(self) -> Type {
        match self {
            Self::AtLeast | Self::Above => Type::Boolean,
            _ => Type::Fp32,
        }
    }
}

/// How a dimension that is longer in the input than in the output is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The largest.
    Max,
    /// The sum.
    Sum,
}

impl Reduce {
    pub(super) fn code(self) -> u32 {
        (match self {
            Self::Max => Reduction::CUDNN_REDUCE_TENSOR_MAX,
            Self::Sum => Reduction::CUDNN_REDUCE_TENSOR_ADD,
        }) as u32
    }
}

/// An operation, in full.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    Matmul { a: Tensor, b: Tensor, c: Tensor },
    Pointwise { mode: Mode, x: Tensor, b: Option<Tensor>, t: Option<Tensor>, y: Tensor },
    Reduce { how: Reduce, x: Tensor, y: Tensor },
    Reshape { x: Tensor, y: Tensor },
}

/// Operations on tensors, in the order in which they were written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub(super) tensors: Vec<Described>,
    pub(super) operations: Vec<Operation>,
}

impl Graph {
    fn tensor(&mut self, name: &'static str, dims: [i64; 4], strides: [i64; 4], dtype: Type, role: Role) -> Tensor {
        self.tensors.push(Described { name, dims, strides, dtype, role });
        Tensor(self.tensors.len() - 1)
    }

    /// A tensor that has memory.
    pub fn bound(&mut self, name: &'static str, dims: [i64; 4], strides: [i64; 4], dtype: Type) -> Tensor {
        self.tensor(name, dims, strides, dtype, Role::Bound)
    }

    /// A packed tensor that stays inside the kernel.
    pub fn virtual_(&mut self, name: &'static str, dims: [i64; 4], dtype: Type) -> Tensor {
        self.tensor(name, dims, packed(dims), dtype, Role::Virtual)
    }

    /// The same with strides of its own.
    pub fn virtual_strided(&mut self, name: &'static str, dims: [i64; 4], strides: [i64; 4], dtype: Type) -> Tensor {
        self.tensor(name, dims, strides, dtype, Role::Virtual)
    }

    /// One number.
    pub fn constant(&mut self, name: &'static str, value: f32) -> Tensor {
        self.tensor(name, [1; 4], [1; 4], Type::Fp32, Role::Constant(value))
    }

    /// `c = a·b` over the last two dimensions; the heads of `b` repeat as often as `a` has more.
    pub fn matmul(&mut self, a: Tensor, b: Tensor, c: Tensor) {
        self.operations.push(Operation::Matmul { a, b, c });
    }

    /// A pointwise operation on one tensor.
    pub fn unary(&mut self, mode: Mode, x: Tensor, y: Tensor) {
        self.operations.push(Operation::Pointwise { mode, x, b: None, t: None, y });
    }

    /// On two; a dimension of 1 in `b` repeats.
    pub fn binary(&mut self, mode: Mode, x: Tensor, b: Tensor, y: Tensor) {
        self.operations.push(Operation::Pointwise { mode, x, b: Some(b), t: None, y });
    }

    /// `y` is `x` where `t`, else `b`.
    pub fn select(&mut self, x: Tensor, b: Tensor, t: Tensor, y: Tensor) {
        self.operations.push(Operation::Pointwise { mode: Mode::Select, x, b: Some(b), t: Some(t), y });
    }

    /// `y` is `x` with one dimension reduced.
    pub fn reduce(&mut self, how: Reduce, x: Tensor, y: Tensor) {
        self.operations.push(Operation::Reduce { how, x, y });
    }

    /// `y` is `x` seen with other dimensions and strides.
    pub fn reshape(&mut self, x: Tensor, y: Tensor) {
        self.operations.push(Operation::Reshape { x, y });
    }
}

/// Strides of a packed tensor.
pub fn packed(dims: [i64; 4]) -> [i64; 4] {
    [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_tensor_has_its_last_dimension_side_by_side() {
        assert_eq!(packed([2, 3, 5, 7]), [105, 35, 7, 1]);
    }

    #[test]
    fn operations_stay_in_the_order_in_which_they_were_written() {
        let mut graph = Graph::default();
        let x = graph.bound("x", [1, 1, 4, 4], packed([1, 1, 4, 4]), Type::Bf16);
        let scale = graph.constant("scale", 0.5);
        let y = graph.virtual_("y", [1, 1, 4, 4], Type::Fp32);
        let sum = graph.bound("sum", [1, 1, 4, 1], [4, 4, 1, 1], Type::Fp32);
        graph.binary(Mode::Multiply, x, scale, y);
        graph.reduce(Reduce::Sum, y, sum);
        let multiply = Operation::Pointwise { mode: Mode::Multiply, x, b: Some(scale), t: None, y };
        assert_eq!(graph.operations, [multiply, Operation::Reduce { how: Reduce::Sum, x: y, y: sum }]);
        assert_eq!([x, scale, y, sum].map(Tensor::uid), [1, 2, 3, 4]);
    }
}
