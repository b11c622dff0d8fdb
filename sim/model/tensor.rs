//! Tensor parallelism: how the modules of a model are split over ranks, and what is exchanged where they meet.
//!
//! The first linear of a pair is split on its rows, the second on its columns (arXiv 1909.08053, section 3): heads,
//! feed-forward width and vocabulary are a rank's part, and the second linear leaves a partial sum. With sequence
//! parallelism (arXiv 2205.05198, section 4.2.2) what lies between the pairs (norms, residual sums) is split on the
//! sequence: it is gathered before a pair and reduced and scattered after it. Without, each rank holds all of it and
//! the partial sums are all-reduced.
//!
//! The modules are written as PyTorch's DTensor runs them (`torch/distributed/tensor/parallel/style.py`).

mod parallel;

pub use parallel::{Redistribution, TensorParallel};

use super::graph::{Axis, GraphBuilder, OpKind, ValueId};

/// What a split module reads: the whole sequence.
pub(super) fn enter(g: &mut GraphBuilder, x: ValueId, module: &'static str) -> ValueId {
    if !g.dims().tensor.sequence {
        return x;
    }
    g.op(module, OpKind::Redistribute(Redistribution::Gather), &[x], &[], ("x_BSD", &[Axis::B, Axis::S, Axis::D]))
}

/// A linear that is split on its rows. Without sequence parallelism each reduces the gradient of its input on its own.
pub(super) fn column_linear(
    g: &mut GraphBuilder,
    module: &'static str,
    kind: OpKind,
    x: ValueId,
    params: &[usize],
    output: (&'static str, &'static [Axis]),
) -> ValueId {
    let tensor = g.dims().tensor;
    if !tensor.splits() || tensor.sequence {
        return g.op(module, kind, &[x], params, output);
    }
    let copy = OpKind::Redistribute(Redistribution::Copy);
    let read = g.op(module, copy, &[x], &[], ("x_BSD", &[Axis::B, Axis::S, Axis::D]));
    let out = g.op(module, kind, &[read], params, output);
    g.drop_values(&[read]);
    out
}

/// What is added to the residual stream: the sum over ranks of what a linear that is split on its columns leaves. Python
/// lets go of `held` after it.
pub(super) fn leave(
    g: &mut GraphBuilder,
    partial: ValueId,
    module: &'static str,
    name: &'static str,
    held: &[ValueId],
) -> ValueId {
    let tensor = g.dims().tensor;
    let mut out = partial;
    if tensor.splits() {
        let how = if tensor.sequence { Redistribution::ReduceScatter } else { Redistribution::AllReduce };
        out = g.op(module, OpKind::Redistribute(how), &[partial], &[], (name, &[Axis::B, Axis::L, Axis::D]));
        g.drop_values(&[partial]);
    }
    g.drop_values(held);
    out
}
