//! What a measured kernel is: its class and its shape, by the operator that launched it first, by its own name second.

use super::side::{Class, Shape};
use crate::trace::{Arg, Class as Purpose, Classes, CollectiveKind, Id, Kernel, Kind, Op, Scope, Trace};

/// The class of a kernel of what the trace's own table says it is for.
pub(super) fn class(trace: &Trace, classes: &Classes<'_>, kernel: &Kernel) -> Class {
    let name = |op: Id<Op>| trace.name(trace.ops[op.at()].name);
    let across = || ["HtoD", "DtoH"].iter().any(|way| trace.name(kernel.name).contains(way));
    match classes.of(kernel) {
        Purpose::Collective(kind) => exchange(kind),
        Purpose::Matmul if kernel.op.is_some_and(|op| name(op).contains("grouped")) => Class::GroupedMatmul,
        Purpose::Matmul => Class::Matmul,
        Purpose::Attention => Class::Attention,
        Purpose::Optimizer => Class::Optimizer,
        Purpose::Copy if kernel.kind == Kind::Copy && across() => Class::Copy,
        Purpose::Copy | Purpose::Set | Purpose::Pointwise | Purpose::Convolution | Purpose::Other => Class::Memory,
    }
}

fn exchange(kind: CollectiveKind) -> Class {
    match kind {
        CollectiveKind::AllReduce => Class::AllReduce,
        CollectiveKind::AllGather => Class::AllGather,
        CollectiveKind::ReduceScatter => Class::ReduceScatter,
        CollectiveKind::AllToAll => Class::AllToAll,
        CollectiveKind::Broadcast => Class::Broadcast,
        CollectiveKind::SendRecv => Class::SendRecv,
        CollectiveKind::Reduce | CollectiveKind::Other => Class::OtherExchange,
    }
}

/// The shape of a kernel of a class.
pub(super) fn shape(trace: &Trace, kernel: &Kernel, class: Class) -> Shape {
    if class.is_exchange() {
        return whole(trace, kernel, class).map_or(Shape::None, Shape::Bytes);
    }
    let Some(op) = kernel.op else { return Shape::None };
    let op = &trace.ops[op.at()];
    match class {
        Class::Matmul => matmul(trace, op).map_or(Shape::None, |[m, n, k]| Shape::matmul(m, n, k)),
        Class::Attention => attention(trace, op).unwrap_or(Shape::None),
        _ => Shape::None,
    }
}

/// The bytes of an exchange, as nccl-tests count them: the whole of what is gathered, scattered or reduced.
pub(super) fn whole(trace: &Trace, kernel: &Kernel, class: Class) -> Option<u64> {
    let known = &trace.collectives[kernel.collective?.at()];
    match class {
        Class::AllGather => known.bytes_out,
        _ => known.bytes_in,
    }
}

/// The rows, the columns and the length of the dot products of an operator's matmul.
pub(super) fn matmul(trace: &Trace, op: &Op) -> Option<[u64; 3]> {
    let args = arguments(trace, op)?;
    let (left, right) = match trace.name(op.name) {
        "aten::mm" | "aten::_scaled_mm" => (args.first()?, args.get(1)?),
        "aten::addmm" => (args.get(1)?, args.get(2)?),
        _ => return None,
    };
    match (&*left.tensors.first()?.dims, &*right.tensors.first()?.dims) {
        (&[m, k], &[length, n]) if k == length => Some([m, n, k]),
        _ => None,
    }
}

/// The shape of an operator's attention: that of its first tensor of four dimensions, the queries or their gradient.
fn attention(trace: &Trace, op: &Op) -> Option<Shape> {
    let tensors = arguments(trace, op)?.iter().flat_map(|arg| &arg.tensors);
    let dims = tensors.map(|tensor| &*tensor.dims).find_map(|dims| <[u64; 4]>::try_from(dims).ok())?;
    let name = trace.name(op.name).to_ascii_lowercase();
    Some(Shape::attention(dims, name.contains("backward") || name.contains("bwd")))
}

/// An operator's arguments, where shapes were recorded.
pub(super) fn arguments<'a>(trace: &'a Trace, op: &Op) -> Option<&'a [Arg]> {
    Some(&trace.signatures[op.signature?.at()].args)
}

/// The name by which both sides call it: the operator with dots, or else the kernel, up to its template arguments.
pub(super) fn operator(trace: &Trace, kernel: &Kernel) -> String {
    let op = kernel.op.map(|op| &trace.ops[op.at()]).filter(|op| op.scope == Scope::Operator);
    match op {
        Some(op) => trace.name(op.name).replace("::", "."),
        None => short(trace.name(kernel.name)).to_owned(),
    }
}

/// A kernel's name without its type and template arguments.
pub(super) fn short(name: &str) -> &str {
    let name = name.strip_prefix("void ").unwrap_or(name);
    let end = name.find(['<', '(']).filter(|&end| end > 0).unwrap_or(name.len());
    name.get(..end).unwrap_or(name)
}
