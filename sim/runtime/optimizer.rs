//! The optimizer step and gradient clipping on the rank's own shards (`torch/optim/adam.py`, `adamw.py`, `sgd.py`,
//! `torch/nn/utils/clip_grad.py`). Order and sizes are those of PyTorch 2.15 (`tests/oracles/fsdp2-switches.json`).

mod adam;
mod for_loop;
mod sgd;

use crate::program::{BufferId, Builder, Category, DType, Dispatch, Instr, MemoryKind, Pass, StreamId, Work};
use crate::units::Bytes;

/// Which optimizer, and which of its implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// torch's `Adam` or `AdamW`.
    Adam(Adam),
    /// Composer's `DecoupledAdamW`, one parameter after the other.
    Composer(Composer),
    /// torch's `SGD`.
    Sgd(Sgd),
}

/// How an optimizer goes through its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Multi-tensor operators, one pass each (PyTorch's default on a GPU).
    Foreach,
    /// One parameter after the other, a kernel for each elementary operation.
    ForLoop,
    /// One kernel for everything.
    Fused,
}

/// What weight decay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// There is none.
    None,
    /// It shrinks the weights in place (`AdamW`).
    OfWeights,
    /// It is added to a copy of the gradients (`Adam`).
    InGradients,
}

/// Settings of `Adam` and `AdamW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adam {
    /// How it goes through its parameters.
    pub how: How,
    /// What weight decay does.
    pub decay: Decay,
    /// Whether the maximum of second moments is kept, as a third state.
    pub amsgrad: bool,
}

/// Settings of Composer's `DecoupledAdamW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composer {
    /// Whether there is weight decay.
    pub decays: bool,
    /// Whether the number of steps is a tensor on the device, which the host reads back for each parameter
    /// (`DecoupledAdamW` of Composer 0.16 and later).
    pub step_on_device: bool,
}

/// Settings of `SGD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgd {
    /// How it goes through its parameters.
    pub how: How,
    /// Whether there is weight decay, which is added to a copy of the gradients.
    pub decays: bool,
    /// Whether there is momentum, which is a state.
    pub momentum: bool,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
}

impl Optimizer {
    /// Names of the states of each parameter, of its size and type.
    fn states(self) -> &'static [&'static str] {
        const ADAM: [&str; 3] = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];
        match self {
            Optimizer::Adam(Adam { amsgrad: true, .. }) => &ADAM,
            Optimizer::Adam(_) | Optimizer::Composer(_) => &ADAM[..2],
            Optimizer::Sgd(Sgd { momentum: true, .. }) => &["momentum_buffer"],
            Optimizer::Sgd(_) => &[],
        }
    }

    /// States of each parameter.
    pub fn moments(self) -> u64 {
        self.states().len() as u64
    }

    /// Whether each parameter's number of steps is a tensor on the device.
    fn counts_on_device(self) -> bool {
        match self {
            Optimizer::Adam(adam) => adam.how == How::Fused,
            Optimizer::Composer(composer) => composer.step_on_device,
            Optimizer::Sgd(_) => false,
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

/// Temporaries of all shards, which one multi-tensor operator makes.
fn made(program: &mut Builder, name: &'static str, sizes: &[u64], element: u64, numbers: (u64, u64)) -> Vec<BufferId> {
    let buffer =
        |&elements: &u64| program.alloc(Bytes(elements * element), StreamId(0), Category::OptimizerTemporary, name);
    let buffers = sizes.iter().map(buffer).collect();
    foreach(program, name, sizes, element, numbers);
    buffers
}

/// Lets go of a list of tensors, as Python does: the last first.
fn let_go(program: &mut Builder, buffers: Vec<BufferId>) {
    for buffer in buffers.into_iter().rev() {
        program.free(buffer);
    }
}

/// Takes the optimizer's state, as its first step does; `sizes` are elements of each parameter's shard.
pub fn make_state(program: &mut Builder, optimizer: Optimizer, sizes: &[u64], element: u64) {
    for &elements in sizes {
        if optimizer.counts_on_device() {
            program.alloc(Bytes(4), StreamId(0), Category::OptimizerState, "step");
        }
        for &name in optimizer.states() {
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
        Optimizer::Composer(settings) => for_loop::composer(program, settings, sizes, element),
        Optimizer::Adam(adam) => match adam.how {
            How::Foreach => adam::foreach(program, adam, sizes, element),
            How::ForLoop => for_loop::adam(program, adam, sizes, element),
            How::Fused => adam::fused(program, adam, sizes, element),
        },
        Optimizer::Sgd(settings) => sgd::step(program, settings, sizes, element),
    }
    program.set_pass(pass);
}

/// One step whose optimizer has fp32 copies of parameters in a narrower type (`element` bytes): their gradients are made in
/// fp32, the copies stepped, and written back to the parameters. `make` makes the optimizer's state where it is yet to be made.
pub fn step_master(
    program: &mut Builder,
    optimizer: Optimizer,
    sizes: &[u64],
    element: u64,
    make: impl FnOnce(&mut Builder),
) {
    let pass = program.set_pass(Pass::Optimizer);
    let stream = StreamId(0);
    let wide = DType::Fp32.bytes();
    let cast = |program: &mut Builder, name, read: u64, written: u64| {
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
        program.launch(stream, name, work, Dispatch::EagerForward);
    };
    let mut gradients = vec![];
    for &elements in sizes {
        gradients.push(program.alloc(Bytes(elements * wide), stream, Category::OptimizerTemporary, "aten._to_copy"));
        cast(program, "aten._to_copy", elements * element, elements * wide);
    }
    make(program);
    step(program, optimizer, sizes, wide);
    for gradient in gradients {
        program.free(gradient);
    }
    for &elements in sizes {
        cast(program, "aten.copy_", elements * wide, elements * element);
    }
    program.set_pass(pass);
}

/// A parameter that lives on the host with its gradient and states (CPU offload), of so many bytes: the first two are pinned
/// (`_fsdp_param.py`, `CPUOffloadPolicy.pin_memory`; a copy with `non_blocking` makes a pinned gradient; `_flat_param.py` under
/// FSDP1), states are not (`zeros_like`).
pub fn on_host(program: &mut Builder, optimizer: Optimizer, bytes: u64) {
    program.pin(bytes);
    program.pin(bytes);
    program.keep_on_host(optimizer.moments() * bytes);
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
