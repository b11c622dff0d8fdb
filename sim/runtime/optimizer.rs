//! The optimizer step and gradient clipping on the rank's own shards (`torch/optim/adamw.py`, `sgd.py`,
//! `torch/nn/utils/clip_grad.py`).

mod for_loop;

use crate::program::{BufferId, Builder, Category, Dispatch, Instr, MemoryKind, Pass, StreamId, Work};
use crate::units::Bytes;

/// Which optimizer, and which of its implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// AdamW through multi-tensor operators, one pass each.
    AdamwForeach {
        /// Whether there is weight decay.
        decays: bool,
    },
    /// AdamW, one parameter after the other.
    AdamwForLoop(PerParam),
    /// AdamW in one kernel.
    AdamwFused,
    /// SGD without momentum, multi-tensor.
    Sgd,
}

/// Settings of an optimizer that steps one parameter after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerParam {
    /// Composer's `DecoupledAdamW` instead of torch's `AdamW`.
    pub decoupled: bool,
    /// Whether there is weight decay.
    pub decays: bool,
    /// Whether the number of steps is a tensor on the device, which the host reads back for each parameter
    /// (`DecoupledAdamW` of Composer 0.16 and later).
    pub step_on_device: bool,
}

impl Optimizer {
    /// Moments per parameter.
    pub fn moments(self) -> u64 {
        match self {
            Optimizer::AdamwForeach { .. } | Optimizer::AdamwFused | Optimizer::AdamwForLoop(_) => 2,
            Optimizer::Sgd => 0,
        }
    }
}

/// Chunks of 65,536 elements, 320 to a launch (`aten/src/ATen/native/cuda/MultiTensorApply.cuh`).
fn launches(sizes: &[u64]) -> u32 {
    let chunks: u64 = sizes.iter().map(|&elements| elements.div_ceil(65_536)).sum();
    u32::try_from(chunks.div_ceil(320)).unwrap_or(u32::MAX).max(1)
}

/// One multi-tensor operator over all shards, reading and writing so many numbers per element.
fn foreach(program: &mut Builder, name: &'static str, sizes: &[u64], element: u64, (reads, writes): (u64, u64)) {
    let total: u64 = sizes.iter().sum::<u64>() * element;
    let work = Work::Memory { kind: MemoryKind::Foreach, read: Bytes(reads * total), written: Bytes(writes * total) };
    program.launch(StreamId(0), name, work, Dispatch::EagerForward);
    program.host(Dispatch::Foreach, launches(sizes) - 1);
}

/// Takes the optimizer's state, as its first step does; `sizes` are elements of each parameter's shard.
pub fn make_state(program: &mut Builder, optimizer: Optimizer, sizes: &[u64], element: u64) {
    for &elements in sizes {
        if matches!(optimizer, Optimizer::AdamwFused | Optimizer::AdamwForLoop(PerParam { step_on_device: true, .. })) {
            program.alloc(Bytes(4), StreamId(0), Category::OptimizerState, "step");
        }
        for name in ["exp_avg", "exp_avg_sq"].into_iter().take(optimizer.moments() as usize) {
            program.alloc(Bytes(elements * element), StreamId(0), Category::OptimizerState, name);
        }
    }
}

/// `p.grad *= scaler` for one parameter after the other.
pub fn scale(program: &mut Builder, sizes: &[u64], element: u64) {
    let pass = program.set_pass(Pass::Optimizer);
    for &elements in sizes {
        let bytes = Bytes(elements * element);
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: bytes, written: bytes };
        program.launch(StreamId(0), "aten.mul_", work, Dispatch::EagerForward);
    }
    program.set_pass(pass);
}

/// One step over all shards.
pub fn step(program: &mut Builder, optimizer: Optimizer, sizes: &[u64], element: u64) {
    let pass = program.set_pass(Pass::Optimizer);
    program.host(Dispatch::OptimizerParam, sizes.len() as u32);
    match optimizer {
        Optimizer::AdamwForLoop(settings) => for_loop::step(program, settings, sizes, element),
        Optimizer::AdamwForeach { decays } => {
            if decays {
                foreach(program, "aten._foreach_mul_", sizes, element, (1, 1));
            }
            foreach(program, "aten._foreach_lerp_", sizes, element, (2, 1));
            foreach(program, "aten._foreach_mul_", sizes, element, (1, 1));
            foreach(program, "aten._foreach_addcmul_", sizes, element, (2, 1));
            let roots: Vec<BufferId> = sizes
                .iter()
                .map(|&elements| {
                    let bytes = Bytes(elements * element);
                    program.alloc(bytes, StreamId(0), Category::OptimizerTemporary, "aten._foreach_sqrt")
                })
                .collect();
            foreach(program, "aten._foreach_sqrt", sizes, element, (1, 1));
            foreach(program, "aten._foreach_div_", sizes, element, (1, 1));
            foreach(program, "aten._foreach_add_", sizes, element, (1, 1));
            foreach(program, "aten._foreach_addcdiv_", sizes, element, (3, 1));
            for root in roots.into_iter().rev() {
                program.free(root);
            }
        }
        Optimizer::AdamwFused => foreach(program, "aten._fused_adamw_", sizes, element, (4, 3)),
        Optimizer::Sgd => foreach(program, "aten._foreach_add_", sizes, element, (2, 1)),
    }
    program.set_pass(pass);
}

/// One step, and clipping if asked for, of parameters, gradients and state that live on the host (CPU offload). The rank
/// waits for it: the next step's all-gathers read what it writes.
pub fn step_on_host(program: &mut Builder, optimizer: Optimizer, sizes: &[u64], element: u64, clip: bool) {
    let pass = program.set_pass(Pass::Optimizer);
    program.host(Dispatch::OptimizerParam, sizes.len() as u32);
    // Parameter, gradient and moments read, all but the gradient written; clipping reads the gradient, then scales it.
    let passes = 3 + 2 * optimizer.moments() + if clip { 3 } else { 0 };
    let bytes = Bytes(passes * element * sizes.iter().sum::<u64>());
    program.launch(StreamId(0), "optimizer on the host", Work::HostMemory { bytes }, Dispatch::EagerForward);
    let event = program.record(StreamId(0));
    program.push(Instr::HostWait { event });
    program.set_pass(pass);
}

/// `clip_grad_norm_` on sharded gradients: norms of each, their norm over all ranks, one scaling. The all-reduce is of
/// one number; it is issued by the caller, who knows the communicator.
pub fn clip(program: &mut Builder, sizes: &[u64], element: u64, all_reduce: impl FnOnce(&mut Builder)) {
    let pass = program.set_pass(Pass::Optimizer);
    let (count, name) = (sizes.len() as u64, "aten._foreach_norm");
    program.host(Dispatch::OptimizerParam, sizes.len() as u32);
    let total: u64 = sizes.iter().sum::<u64>() * element;
    let stream = StreamId(0);
    let scratch = Bytes(8 * count + 4 * sizes.iter().map(|elements| elements.div_ceil(65_536)).sum::<u64>());
    let partial = program.alloc(scratch, stream, Category::OptimizerTemporary, name);
    let norms: Vec<BufferId> =
        sizes.iter().map(|_| program.alloc(Bytes(4), stream, Category::OptimizerTemporary, name)).collect();
    let work = Work::Memory { kind: MemoryKind::Foreach, read: Bytes(total), written: Bytes(4 * count) };
    program.launch(stream, name, work, Dispatch::EagerForward);
    program.host(Dispatch::Foreach, launches(sizes) - 1);
    program.free(partial);
    let stacked = program.alloc(Bytes(4 * count), stream, Category::OptimizerTemporary, "aten.stack");
    let small = Work::Memory { kind: MemoryKind::Copy, read: Bytes(4 * count), written: Bytes(4 * count) };
    program.launch(stream, "aten.stack", small, Dispatch::EagerForward);
    program.launch(stream, "aten.linalg_vector_norm", small, Dispatch::EagerForward);
    all_reduce(program);
    for norm in norms.into_iter().chain([stacked]) {
        program.free(norm);
    }
    foreach(program, "aten._foreach_mul_", sizes, element, (1, 1));
    program.set_pass(pass);
}
