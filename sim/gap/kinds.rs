//! What a measured kernel is: its class and its shape, by the operator that launched it first, by its own name second.

use super::side::{Class, Shape};
use crate::trace::{Arg, CollectiveKind, Id, Kernel, Kind, Op, Scope, Trace};

/// Parts of names, in lower case, and the class that they tell; the first that fits. Sources: names of operators in PyTorch's
/// `native_functions.yaml`, of kernels in the public traces that tests/traces/README.md lists.
const WORDS: [(&str, Class); 28] = [
    ("_grouped_mm", Class::GroupedMatmul),
    ("_scaled_grouped_mm", Class::GroupedMatmul),
    ("grouped_gemm", Class::GroupedMatmul),
    ("groupedgemm", Class::GroupedMatmul),
    ("multi_tensor_apply", Class::Optimizer),
    ("_foreach_", Class::Optimizer),
    ("_fused_adam", Class::Optimizer),
    ("_fused_sgd", Class::Optimizer),
    ("multi_tensor_adam", Class::Optimizer),
    ("flash_attn", Class::Attention),
    ("flash_fwd", Class::Attention),
    ("flash_bwd", Class::Attention),
    ("_flash_attention", Class::Attention),
    ("_efficient_attention", Class::Attention),
    ("_cudnn_attention", Class::Attention),
    ("fused_attn", Class::Attention),
    ("fmha", Class::Attention),
    ("flex_attention", Class::Attention),
    ("scaled_dot_product", Class::Attention),
    ("aten::mm", Class::Matmul),
    ("aten::addmm", Class::Matmul),
    ("aten::bmm", Class::Matmul),
    ("aten::baddbmm", Class::Matmul),
    ("aten::_scaled_mm", Class::Matmul),
    ("gemm", Class::Matmul),
    ("nvjet", Class::Matmul),
    ("splitkreduce", Class::Matmul),
    ("cutlass_80_tensorop", Class::Matmul),
];

/// The class that a name tells.
fn by_name(name: &str) -> Option<Class> {
    let name = name.to_ascii_lowercase();
    WORDS.iter().find(|(word, _)| name.contains(word)).map(|(_, class)| *class)
}

/// The class of a kernel.
pub(super) fn class(trace: &Trace, kernel: &Kernel, in_optimizer: bool) -> Class {
    let name = trace.name(kernel.name);
    match kernel.kind {
        Kind::Collective => exchange(kernel.collective.map(|id| trace.collectives[id.at()].kind)),
        Kind::Copy if name.contains("HtoD") || name.contains("DtoH") => Class::Copy,
        _ => {
            let operator = kernel.op.and_then(|op| by_name(trace.name(trace.ops[op.at()].name)));
            match operator.or_else(|| by_name(name)) {
                Some(Class::Optimizer) | None if in_optimizer => Class::Optimizer,
                // Multi-tensor kernels outside an optimizer pack tensors for collectives.
                Some(Class::Optimizer) | None => Class::Memory,
                Some(class) => class,
            }
        }
    }
}

fn exchange(kind: Option<CollectiveKind>) -> Class {
    match kind.unwrap_or_default() {
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

/// The operators and ranges around an operator, from the inside out, itself first.
pub(super) fn around(trace: &Trace, op: Option<Id<Op>>) -> impl Iterator<Item = &Op> {
    std::iter::successors(op.map(|op| &trace.ops[op.at()]), |op| op.parent.map(|parent| &trace.ops[parent.at()]))
}
