//! What a linear of Transformer Engine's multiplies: its sizes, and its three products.

use super::super::frame::Results;
use super::super::shape::Exchanged;
use super::super::shape::MatmulShape;
use crate::model::graph::{Graph, Op};
use crate::model::megatron::{Fp8, MegatronOp, Scatter};
use crate::program::{DType, Dispatch, MatmulLayout, Work};

/// A matmul of Transformer Engine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Rows, columns, and what is summed over.
    pub shape: MatmulShape,
    /// Type that is multiplied.
    pub dtype: DType,
    /// Which matmul of the linear.
    pub layout: MatmulLayout,
    /// The launch of the first part, with the Python around it.
    pub dispatch: Dispatch,
}

impl Product {
    /// The work of one part.
    pub(super) fn part(self, rows: u64, columns: u64) -> Work {
        let Product { shape: MatmulShape { m, n, k }, dtype, layout, .. } = self;
        Work::Matmul { m: m / rows, n: n / columns, k, dtype, layout }
    }

    /// The launch of a part.
    pub(super) fn launch_of(self, part: u64) -> Dispatch {
        if part == 0 { self.dispatch } else { Dispatch::Extra }
    }
}

/// What the rules read off the operator.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    /// Tokens multiplied.
    pub(super) tokens: u64,
    /// Whether the ranks hold parts of the sequence between modules.
    pub(super) sequence: bool,
    /// Whether there are several ranks.
    pub(super) splits: bool,
    /// Whether what is exchanged overlaps with matmuls, in buffers of its own.
    pub(super) overlap: bool,
    /// How what is summed is scattered, if overlapped with the matmul.
    pub(super) scatter: Option<Scatter>,
    pub(super) dtype: DType,
    pub(super) fp8: Option<Fp8>,
}

impl Sizes {
    pub(super) fn of(graph: &Graph, op: &Op, kind: MegatronOp) -> Sizes {
        if let MegatronOp::ColumnLinear { inputs, outputs, fp8, .. } = kind {
            let (value, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
            let (tokens, dtype, tensor) = (out.elements / outputs, value.dtype, graph.dims.tensor);
            let [sequence, splits, overlap] = [tensor.sequence, tensor.splits(), false];
            return Sizes { inputs, outputs, tokens, sequence, splits, overlap, scatter: None, dtype, fp8 };
        }
        let (inputs, outputs, overlap, scatter, fp8) = match kind {
            MegatronOp::NormLinear { inputs, outputs, overlap, fp8, .. } => (inputs, outputs, overlap, None, fp8),
            MegatronOp::RowLinear { inputs, outputs, overlap, fp8 } => {
                (inputs, outputs, overlap.is_some(), overlap, fp8)
            }
            _ => unreachable!("called for linears"),
        };
        let tensor = graph.dims.tensor;
        Sizes {
            inputs,
            outputs,
            tokens: graph.dims.tokens(),
            sequence: tensor.sequence,
            splits: tensor.splits(),
            overlap,
            scatter,
            dtype: graph.values[op.inputs[0]].dtype,
            fp8,
        }
    }

    /// Bytes of the multiplied input, and of the product.
    pub(super) fn read(&self) -> u64 {
        self.tokens * self.inputs * self.dtype.bytes()
    }

    pub(super) fn made(&self) -> u64 {
        self.tokens * self.outputs * self.dtype.bytes()
    }

    /// The input, exchanged as it is.
    pub(super) fn whole_input(&self) -> Exchanged {
        Exchanged { bytes: self.read(), dtype: self.dtype }
    }

    /// The product, exchanged as it is.
    pub(super) fn whole_product(&self) -> Exchanged {
        Exchanged { bytes: self.made(), dtype: self.dtype }
    }

    /// As forward runs: without autograd no gather overlaps with a matmul.
    pub(super) fn in_pass(self, results: Results) -> Sizes {
        Sizes { overlap: self.overlap && results == Results::Save, ..self }
    }

    /// For a matmul that no exchange overlaps with.
    pub(super) fn alone(self) -> Sizes {
        Sizes { overlap: false, ..self }
    }

    /// The product, and the gradient of what was multiplied.
    pub(super) fn forward(&self, dispatch: Dispatch) -> Product {
        let shape = MatmulShape { m: self.tokens, n: self.outputs, k: self.inputs };
        Product { shape, dtype: self.multiplied(), layout: MatmulLayout::Forward, dispatch }
    }

    pub(super) fn data_gradient(&self, dispatch: Dispatch) -> Product {
        let shape = MatmulShape { m: self.tokens, n: self.inputs, k: self.outputs };
        Product { shape, dtype: self.multiplied(), layout: MatmulLayout::DataGradient, dispatch }
    }

    /// Type that is multiplied.
    pub(super) fn multiplied(&self) -> DType {
        self.fp8.map_or(self.dtype, |_| DType::Fp8)
    }

    pub(super) fn weight(&self) -> u64 {
        self.inputs * self.outputs * self.dtype.bytes()
    }
}

/// Numbers a row that a norm's forward leaves: mean and deviation, or one root.
pub(super) fn statistics(params: usize) -> usize {
    if params > 1 { 2 } else { 1 }
}
