//! Weights that are gathered in fp8 (`torchao/float8/fsdp_utils.py`): `fsdp_pre_all_gather` multiplies a shard by its scale,
//! clamps it and casts it, in eager operators on the copy-in stream; after the optimizer's step one pass over all shards
//! finds the scales (`precompute_float8_dynamic_scale_for_fsdp`), or each gather finds its own and all-reduces it.

use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, StreamId, Work,
};
use crate::units::Bytes;

/// One number.
const NUMBER: Bytes = Bytes(4);

fn pointwise(program: &mut Builder, stream: StreamId, name: &'static str, read: u64, written: u64) {
    let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
    program.launch(stream, name, work, Dispatch::EagerForward);
}

/// Casts a shard of `elements` of `stored` bytes each: the block in fp8. `scales`: the ranks that find its scale together
/// now, if it was not found before.
pub(super) fn cast(
    program: &mut Builder,
    stream: StreamId,
    (elements, stored): (u64, u64),
    scales: Option<GroupId>,
) -> BufferId {
    let wide = elements * stored;
    if let Some(group) = scales {
        let size = Bytes(wide);
        let magnitudes = program.alloc(size, stream, Category::AllGatherInput, "aten.abs");
        pointwise(program, stream, "aten.abs", wide, wide);
        let work = Work::Memory { kind: MemoryKind::Norm, read: size, written: NUMBER };
        program.launch(stream, "aten.max", work, Dispatch::EagerForward);
        program.free(magnitudes);
        let comm = Comm { kind: Collective::AllReduce, group, bytes: NUMBER, dtype: DType::Fp32 };
        program.collective(stream, comm);
        for name in ["aten.clamp", "aten.to", "aten.reciprocal", "aten.mul"] {
            pointwise(program, stream, name, NUMBER.0, NUMBER.0);
        }
    }
    let scaled = program.alloc(Bytes(wide), stream, Category::AllGatherInput, "aten.mul");
    pointwise(program, stream, "aten.mul", wide, wide);
    let clamped = program.alloc(Bytes(wide), stream, Category::AllGatherInput, "aten.clamp");
    pointwise(program, stream, "aten.clamp", wide, wide);
    program.free(scaled);
    let cast = program.alloc(Bytes(elements), stream, Category::AllGatherInput, "aten._to_copy");
    pointwise(program, stream, "aten._to_copy", wide, elements);
    program.free(clamped);
    cast
}

/// Finds the scales of all weights after the optimizer's step: one norm kernel over the shards, one all-reduce of as many
/// numbers as weights over each axis of the mesh.
pub(in crate::runtime) fn precompute(
    program: &mut Builder,
    stream: StreamId,
    shards: &[u64],
    stored: u64,
    groups: impl Iterator<Item = GroupId>,
) {
    let count = shards.len() as u64;
    let bytes = Bytes(shards.iter().sum::<u64>() * stored);
    let numbers = Bytes(count * NUMBER.0);
    let found = program.alloc(numbers, stream, Category::OptimizerTemporary, "aten._foreach_norm");
    program.host(Dispatch::OptimizerParam, count as u32);
    let work = Work::Memory { kind: MemoryKind::Foreach, read: bytes, written: numbers };
    program.launch(stream, "aten._foreach_norm", work, Dispatch::EagerForward);
    pointwise(program, stream, "aten.stack", numbers.0, numbers.0);
    for group in groups {
        let comm = Comm { kind: Collective::AllReduce, group, bytes: numbers, dtype: DType::Fp32 };
        program.collective(stream, comm);
    }
    for name in ["aten.clamp", "aten.to", "aten.reciprocal", "aten.mul", "aten.to"] {
        pointwise(program, stream, name, numbers.0, numbers.0);
    }
    program.free(found);
}
