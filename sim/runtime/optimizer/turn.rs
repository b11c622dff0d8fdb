//! The optimizer's turn, whichever it is: its states made, a step on the device or on the host, and masters beside parameters.

use super::contract::{Caller, Pass as Moved, Rules};
use super::kernels::Step;
use super::param::Owned;
use crate::program::{Builder, Category, DType, Dispatch, Instr, MemoryKind, Pass, StreamId, Work};
use crate::units::Bytes;

/// Takes the optimizer's states, as its first step does.
pub(super) fn make_state(program: &mut Builder, rules: &dyn Rules, (caller, params, element): (Caller, &[Owned], u64)) {
    let mut take = |bytes, name| {
        program.alloc(Bytes(bytes), StreamId(0), Category::OptimizerState, name);
    };
    if caller.makes_state_by_state() {
        let states: Vec<_> = params.iter().map(|param| rules.states(param, element)).collect();
        let most = states.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..most {
            states.iter().filter_map(|of_one| of_one.get(at)).for_each(|state| take(state.bytes(), state.name));
        }
        return;
    }
    for param in params {
        if rules.counts_on_device() {
            take(4, "step");
        }
        rules.states(param, element).iter().for_each(|state| take(state.bytes(), state.name));
    }
}

/// One step over all parameters.
pub(super) fn step(program: &mut Builder, rules: &dyn Rules, (caller, params, element): (Caller, &[Owned], u64)) {
    let pass = program.set_pass(Pass::Optimizer);
    program.host(Dispatch::OptimizerParam, params.len() as u32);
    kernels(program, rules, (caller, params, element));
    program.set_pass(pass);
}

/// The kernels of one step alone.
pub(super) fn kernels(program: &mut Builder, rules: &dyn Rules, (caller, params, element): (Caller, &[Owned], u64)) {
    rules.step(&mut Step { program, params, element, launches: caller.launches() });
}

/// One step whose optimizer has fp32 copies of parameters in a narrower type (`element` bytes): their gradients are made in
/// fp32, the copies stepped, and written back to the parameters. `make` makes the optimizer's states where they are yet to be made.
pub(super) fn step_master(
    program: &mut Builder,
    rules: &dyn Rules,
    (caller, params, element): (Caller, &[Owned], u64),
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
    for elements in params.iter().map(Owned::elements) {
        gradients.push(program.alloc(Bytes(elements * wide), stream, Category::OptimizerTemporary, "aten._to_copy"));
        cast(program, "aten._to_copy", elements * element, elements * wide);
    }
    make(program);
    step(program, rules, (caller, params, wide));
    for gradient in gradients {
        program.free(gradient);
    }
    for elements in params.iter().map(Owned::elements) {
        cast(program, "aten.copy_", elements * wide, elements * element);
    }
    program.set_pass(pass);
}

/// A parameter that lives on the host with its gradient and states (CPU offload): the first two are pinned
/// (`_fsdp_param.py`, `CPUOffloadPolicy.pin_memory`; a copy with `non_blocking` makes a pinned gradient; `_flat_param.py` under
/// FSDP1), states are not (`zeros_like`).
pub(super) fn keep_on_host(program: &mut Builder, rules: &dyn Rules, param: &Owned, element: u64) {
    let bytes = param.elements() * element;
    program.pin(bytes);
    program.pin(bytes);
    program.keep_on_host(rules.states(param, element).iter().map(|state| state.bytes()).sum());
}

/// One step, and clipping if asked for, of parameters, gradients and states that live on the host (CPU offload). The rank
/// waits for it: the next step's all-gathers read what it writes.
pub(super) fn step_on_host(program: &mut Builder, moved: Moved, (params, element, clip): (&[Owned], u64, bool)) {
    let pass = program.set_pass(Pass::Optimizer);
    program.host(Dispatch::OptimizerParam, params.len() as u32);
    // Clipping reads the gradient, then scales it.
    let clipping = if clip { 3 * super::param::elements(params) * element } else { 0 };
    let bytes = Bytes(moved.read + moved.written + clipping);
    program.launch(StreamId(0), moved.kernel, Work::HostMemory { bytes }, Dispatch::EagerForward);
    let event = program.record(StreamId(0));
    program.push(Instr::HostWait { event });
    program.set_pass(pass);
}
