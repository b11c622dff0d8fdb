//! Kernels of the engine's own, between the model's operators.

use crate::program::{BufferId, Builder, Category, DType, Dispatch, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// Bytes of an element: parameters and gradients are in bf16.
pub(super) const BF16: u64 = 2;

/// Bytes of an element in fp32.
pub(super) const FP32: u64 = 4;

/// An elementwise kernel that reads and writes so many bytes.
pub(super) fn elementwise(program: &mut Builder, stream: StreamId, name: &'static str, (read, written): (u64, u64)) {
    let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
    program.launch(stream, name, work, Dispatch::EagerForward);
}

/// A copy of so many elements.
pub(super) fn copy(program: &mut Builder, stream: StreamId, elements: u64) {
    let bytes = Bytes(elements * BF16);
    let work = Work::Memory { kind: MemoryKind::Copy, read: bytes, written: bytes };
    program.launch(stream, "aten.copy_", work, Dispatch::EagerForward);
}

/// `_has_inf_or_nan`: through six tensors as large as what is looked through.
pub(super) fn look_through(program: &mut Builder, stream: StreamId, elements: u64, sms: u32) {
    let (bf16, fp32) = (elements * BF16, elements * DType::Fp32.bytes());
    let wide = made(program, stream, "aten._to_copy", (bf16, fp32));
    let nan = made(program, stream, "aten.isnan", (fp32, elements));
    let magnitude = made(program, stream, "aten.abs", (fp32, fp32));
    let inf = made(program, stream, "aten.eq", (fp32, elements));
    program.free(magnitude);
    let either = made(program, stream, "aten.logical_or", (2 * elements, elements));
    let number = made(program, stream, "aten._to_copy", (elements, fp32));
    let most = reduced(program, stream, "aten.max", (elements, 4), sms);
    for gone in [number, wide, nan, inf, either, most] {
        program.free(gone);
    }
}

/// One number of so many, each of so many bytes: where each of 512 threads has 256 of them or more several blocks of threads take
/// part, each leaves one, and they count themselves (`aten/src/ATen/native/cuda/Reduce.cuh`).
pub(super) fn reduced(
    program: &mut Builder,
    stream: StreamId,
    name: &'static str,
    (elements, each): (u64, u64),
    sms: u32,
) -> BufferId {
    let number = program.alloc(Bytes(each), stream, Category::OptimizerTemporary, name);
    let per_thread = elements.div_ceil(512);
    if per_thread >= 256 {
        let blocks = per_thread.div_ceil(16).min(4 * u64::from(sms));
        let scratch =
            [blocks * each, 4].map(|bytes| program.alloc(Bytes(bytes), stream, Category::OptimizerTemporary, name));
        scratch.into_iter().rev().for_each(|buffer| program.free(buffer));
    }
    elementwise(program, stream, name, (elements * each, each));
    number
}

/// An elementwise kernel that makes a block.
pub(super) fn made(
    program: &mut Builder,
    stream: StreamId,
    name: &'static str,
    (read, written): (u64, u64),
) -> BufferId {
    let buffer = program.alloc(Bytes(written), stream, Category::OptimizerTemporary, name);
    elementwise(program, stream, name, (read, written));
    buffer
}
