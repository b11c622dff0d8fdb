//! What an instruction moves in HBM, and what a kernel says of itself.

use windtunnel::program::MemoryKind;

use crate::pjrt::hlo::{Computation, Instruction, Shape};

/// Bytes in HBM; elsewhere none.
pub(super) fn in_hbm(shape: &Shape) -> u64 {
    let own = Shape { tuple: vec![], ..shape.clone() };
    let here = shape.layout.as_ref().is_none_or(|layout| layout.memory == 0);
    let parts: u64 = shape.tuple.iter().map(in_hbm).sum();
    parts + if here { own.bytes() } else { 0 }
}

/// What a kernel says that it computes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    pub(super) flops: u64,
    pub(super) bytes: u64,
}

impl Estimate {
    /// From the call's own configuration, if its author wrote one.
    pub(super) fn of(one: &Instruction) -> Option<Self> {
        let notes: serde_json::Value = serde_json::from_slice(&one.backend).ok()?;
        let said = notes.pointer("/custom_call_config/cost_estimate")?;
        let number = |key: &str| match said.get(key) {
            Some(serde_json::Value::String(text)) => text.parse().ok(),
            Some(value) => value.as_u64(),
            None => None,
        };
        let [flops, bytes] = ["flops", "bytes_accessed"].map(number);
        (flops.or(bytes).is_some()).then(|| Self { flops: flops.unwrap_or(0), bytes: bytes.unwrap_or(0) })
    }
}

/// What a fusion reads of a parameter, where it reads slices of it alone, or writes into it.
pub(super) fn read_of(inner: &Computation, parameter: &Instruction) -> Option<u64> {
    let mut sum = 0;
    for user in inner.instructions.iter().filter(|one| one.operands.contains(&parameter.id)) {
        sum += match user.opcode.as_str() {
            "dynamic-slice" | "slice" | "gather" => user.shape.as_ref().map_or(0, Shape::bytes),
            "dynamic-update-slice" if user.operands.first() == Some(&parameter.id) => 0,
            "bitcast" => read_of(inner, user)?,
            _ => return None,
        };
    }
    Some(sum)
}

/// What a fusion's result takes to write: of an update in place, the update.
pub(super) fn written_by(inner: &Computation, root: &Instruction) -> u64 {
    let of = |id: &i64| inner.instruction(*id).map_or(0, |one| written_by(inner, one));
    match root.opcode.as_str() {
        "tuple" => root.operands.iter().map(of).sum(),
        "bitcast" => root.operands.first().map_or(0, of),
        "dynamic-update-slice" => {
            inner.operand(root, 1).and_then(|update| update.shape.as_ref()).map_or(0, Shape::bytes)
        }
        _ => root.shape.as_ref().map_or(0, Shape::bytes),
    }
}

/// The kind of a fusion that memory bounds, by the most irregular that it does.
pub(super) fn kind_of(inner: &Computation) -> MemoryKind {
    let has = |opcode: &str| inner.instructions.iter().any(|one| one.opcode == opcode);
    match () {
        () if has("scatter") => MemoryKind::Scatter,
        () if has("gather") => MemoryKind::Gather,
        () if has("exponential") && has("reduce") => MemoryKind::Softmax,
        () if has("rsqrt") => MemoryKind::Norm,
        () => MemoryKind::Elementwise,
    }
}
