//! What crosses to the host's memory and back, and what the host's processors do with it (`deepspeed/ops/adam/cpu_adam.py`).

use super::kernels::{BF16, FP32};
use crate::program::{BufferId, Builder, Category, Dispatch, StreamId, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{Caller, Optimizer, Owned};
use crate::units::Bytes;

/// A copy from the host's memory, or to it; the host does not wait for it.
pub(super) fn cross(program: &mut Builder, stream: StreamId, bytes: u64, to_host: bool) {
    let name = if to_host { "aten.copy_ to the host" } else { "aten.copy_ from the host" };
    program.launch(stream, name, Work::HostCopy { bytes: Bytes(bytes), to_host }, Dispatch::EagerForward);
}

/// The host's processors read and write so many bytes, and the rank waits.
fn on_host(program: &mut Builder, name: &'static str, bytes: u64) {
    program.launch(COMPUTE, name, Work::HostMemory { bytes: Bytes(bytes) }, Dispatch::EagerForward);
    program.wait_for_host(COMPUTE);
}

/// Gradients of so many elements are scaled, and the optimizer steps.
pub(super) fn step(program: &mut Builder, optimizer: &Optimizer, elements: u64) {
    let moved = optimizer.on_host(Caller::Zero, &[Owned::flat(elements)], FP32);
    let moved = moved.expect("scenarios that step another on the host are refused");
    on_host(program, "aten.mul_ on the host", 2 * elements * FP32);
    on_host(program, moved.kernel, moved.read + moved.written);
}

/// Bytes of the optimizer's states of so many elements, each.
pub(super) fn states(optimizer: &Optimizer, elements: u64) -> impl Iterator<Item = u64> + use<> {
    optimizer.states(&Owned::flat(elements), FP32).into_iter().map(|state| state.bytes())
}

/// So many stepped parameters are copied to a block in bf16.
pub(super) fn narrow(program: &mut Builder, elements: u64) {
    on_host(program, "aten.copy_ on the host", elements * (FP32 + BF16));
}

/// A part comes from the host's memory, and the host waits for it.
pub(super) fn bring(program: &mut Builder, stream: StreamId, bytes: u64) -> BufferId {
    let part = program.alloc(Bytes(bytes), stream, Category::UnshardedParameter, "part from the host");
    cross(program, stream, bytes, false);
    program.wait_for_host(stream);
    part
}
