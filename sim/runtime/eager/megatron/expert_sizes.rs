//! Sizes of a rank's experts, multiplied in one call.

use crate::model::graph::{Graph, Op};
use crate::model::megatron::Fp8;
use crate::model::megatron::experts::RoutedOp;
use crate::program::DType;

/// What the rules read off the operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    pub(super) local: u64,
    pub(super) rows: u64,
    pub(super) dtype: DType,
    pub(super) fp8: Option<Fp8>,
}

impl Sizes {
    pub(super) fn of(graph: &Graph, op: &Op, kind: RoutedOp) -> Sizes {
        let RoutedOp::Grouped { inputs, outputs, local, fp8 } = kind else {
            unreachable!("called for grouped linears")
        };
        let value = &graph.values[op.inputs[0]];
        Sizes { inputs, outputs, local, rows: value.elements / inputs, dtype: value.dtype, fp8 }
    }

    pub(super) fn weight(&self) -> u64 {
        self.inputs * self.outputs * self.dtype.bytes()
    }
}
