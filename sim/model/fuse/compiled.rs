//! A compiled module: its tensors, and the kernels it launches.

use std::collections::BTreeMap;

use super::float8::Float8;
use crate::model::graph::ParamId;
use crate::program::{Collective, DType, Work};

/// Index of a tensor in a [`Compiled`] module.
pub type TensorId = usize;

/// A tensor, or a view of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the value it holds.
    pub name: &'static str,
    /// Size \[B\]; of a view, of the part seen.
    pub bytes: u64,
    /// Elements.
    pub elements: u64,
    /// The tensor whose memory this is: itself unless a view.
    pub base: TensorId,
}

/// What a compiled module launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// A matmul through cuBLAS, into a buffer of the wrapper.
    Matmul(Work),
    /// The attention operator at this index of the graph, forward or backward; it takes its own memory.
    Attention {
        /// Index of the operator.
        op: usize,
        /// Sliding window, in keys.
        window: Option<u64>,
        /// Backward.
        backward: bool,
    },
    /// An operator inductor does not generate; it takes its own memory.
    Library(Work),
    /// A collective of the tensor-parallel ranks, for which the module waits at once.
    Exchange {
        /// Which.
        kind: Collective,
        /// The whole buffer \[B\].
        bytes: u64,
        /// Element type.
        dtype: DType,
    },
    /// Matmuls of a tensor that is gathered while they run.
    GatherMatmuls {
        /// The matmuls.
        works: Vec<Work>,
        /// The whole tensor \[B\].
        bytes: u64,
        /// Its type.
        dtype: DType,
        /// Whether the whole is a result too.
        keeps: bool,
    },
    /// A matmul whose result is reduced and scattered while it runs.
    MatmulScatter {
        /// The matmul.
        work: Work,
        /// Its result \[B\].
        bytes: u64,
        /// Its type.
        dtype: DType,
    },
    /// A generated kernel.
    Fused(Work),
}

/// What is compiled in beside the module itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Linears in fp8.
    pub float8: Option<Float8>,
    /// Whether exchanges run in parts beside their matmuls (`_micro_pipeline_tp`).
    pub pipelined: bool,
}

/// One launch with its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name, after the operators in it.
    pub name: &'static str,
    /// What is launched.
    pub launch: Launch,
    /// Tensors read, parameters aside.
    pub reads: Vec<TensorId>,
    /// Tensors written.
    pub writes: Vec<TensorId>,
    /// Results that may be written over a tensor read, if it is read for the last time: (result, tensor).
    pub in_place: Vec<(TensorId, TensorId)>,
    /// Whether the kernel runs an operator of the forward again.
    pub recompute: bool,
    /// The forward operator that it belongs to; of several, the first.
    pub op: usize,
}

/// What survives of forward until backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// No checkpointing: the partitioner decides.
    MinCut,
    /// Full activation checkpointing: the input alone.
    Input,
    /// torchtitan's operator-level policy: attention and every second matmul, where backward needs them.
    ComputeIntensive,
}

/// A compiled module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Tensors; the first is the module's input.
    pub tensors: Vec<Tensor>,
    /// The module's result.
    pub output: TensorId,
    /// Tensors kept for backward, in the order forward made them; the input is among them if backward reads it.
    pub saved: Vec<TensorId>,
    /// Forward.
    pub forward: Vec<Kernel>,
    /// Backward.
    pub backward: Vec<Kernel>,
    /// The gradient of the result, which backward is given.
    pub seed: TensorId,
    /// The gradient of the input.
    pub input_gradient: TensorId,
    /// Gradients of parameters, and their type.
    pub gradients: Vec<(ParamId, TensorId)>,
    /// The type of parameters and their gradients.
    pub dtype: DType,
    /// Tensors that take over the buffer of another instead of a new one.
    pub takes: BTreeMap<TensorId, TensorId>,
}

impl Compiled {
    /// Bytes that a module keeps between forward and backward, its input and parameters aside.
    pub fn saved_bytes(&self) -> u64 {
        self.saved.iter().filter(|&&tensor| tensor != 0).map(|&tensor| self.tensors[tensor].bytes).sum()
    }
}
