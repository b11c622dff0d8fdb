//! What is done to gradients before they are stepped: clipping (`torch/nn/utils/clip_grad.py`) and scaling.

use super::kernels::{CHUNK, Launches, Step};
use super::param::{self, Owned};
use crate::program::{BufferId, Builder, Category, Dispatch, MemoryKind, Pass, StreamId, Work};
use crate::units::Bytes;

/// `p.grad *= scaler` for one parameter after the other.
pub fn scale(program: &mut Builder, params: &[Owned], element: u64) {
    let pass = program.set_pass(Pass::Optimizer);
    let mut step = Step { program, params, element, launches: Launches::OfEach };
    for param in params {
        let bytes = param.elements() * element;
        step.kernel("aten.mul_", bytes, bytes);
    }
    program.set_pass(pass);
}

/// `clip_grad_norm_` on sharded gradients: norms of each, their norm over all ranks, one scaling. The all-reduce is of
/// one number; it is issued by the caller, who knows the communicator.
pub fn clip(program: &mut Builder, params: &[Owned], element: u64, all_reduce: impl FnOnce(&mut Builder)) {
    let pass = program.set_pass(Pass::Optimizer);
    let (count, name) = (params.len() as u64, "aten._foreach_norm");
    program.host(Dispatch::OptimizerParam, params.len() as u32);
    let total = param::elements(params) * element;
    let stream = StreamId(0);
    let chunks: u64 = params.iter().map(|param| param.elements().div_ceil(CHUNK)).sum();
    let mut step = Step { program, params, element, launches: Launches::OfEach };
    let partial = step.temporary(8 * count + 4 * chunks, name);
    let norms: Vec<BufferId> = params.iter().map(|_| step.temporary(4, name)).collect();
    step.multi_tensor(name, (total, 4 * count));
    program.free(partial);
    let stacked = program.alloc(Bytes(4 * count), stream, Category::OptimizerTemporary, "aten.stack");
    let small = Work::Memory { kind: MemoryKind::Copy, read: Bytes(4 * count), written: Bytes(4 * count) };
    program.launch(stream, "aten.stack", small, Dispatch::EagerForward);
    program.launch(stream, "aten.linalg_vector_norm", small, Dispatch::EagerForward);
    all_reduce(program);
    for norm in norms.into_iter().chain([stacked]) {
        program.free(norm);
    }
    Step { program, params, element, launches: Launches::OfEach }.foreach("aten._foreach_mul_", (1, 1));
    program.set_pass(pass);
}
