//! Operators on rows that several dispatchers write down.

use crate::model::graph::{Axis, GraphBuilder, OpKind, ValueId};
use crate::model::megatron::{MegatronOp, RoutedOp};
use crate::program::DType;

pub(super) const LBD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
pub(super) const C: &[Axis] = &[Axis::C];
pub(super) const CD: &[Axis] = &[Axis::C, Axis::D];
pub(super) const MODULE: &str = "mlp";

/// An operator on rows, with so many elements as a result.
pub(super) fn rows(
    g: &mut GraphBuilder,
    kind: RoutedOp,
    inputs: &[ValueId],
    (name, shape, elements): (&'static str, &'static [Axis], u64),
    dtype: DType,
) -> ValueId {
    let value = g.op_in(MODULE, OpKind::Megatron(MegatronOp::Routed(kind)), inputs, &[], (name, shape), dtype);
    g.resize(value, elements);
    value
}

/// Rows added to the tokens they are of: what leaves the mixture.
pub(super) fn unpermute(g: &mut GraphBuilder, fused: bool, [rows, of]: [ValueId; 2]) -> ValueId {
    let elements = g.dims().elements(LBD);
    unpermute_to(g, fused, [rows, of], ("ffn_LBD", LBD, elements))
}

/// The same, to tokens that may be other ranks', too.
pub(super) fn unpermute_to(
    g: &mut GraphBuilder,
    fused: bool,
    [of_experts, of]: [ValueId; 2],
    result: (&'static str, &'static [Axis], u64),
) -> ValueId {
    let compute = g.compute();
    rows(g, RoutedOp::Unpermute { fused }, &[of_experts, of], result, compute)
}
