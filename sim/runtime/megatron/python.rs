//! What the host pays for Transformer Engine's kernels: more than a launch, as its modules are Python.
//!
//! A linear of its is a module, an autograd function and a call through its extension, each with a choice of types,
//! workspaces and quantizers in Python, forward and backward; in fp8 it takes more than twice as long
//! (NVIDIA/TransformerEngine#761), as its casts are kernels of their own here. Rotary kernels are called as Megatron's own
//! modules call theirs. What inductor compiled (`jit_fuser`) costs its launcher: the guards before it are left out.
//! Operators of PyTorch between them cost what they cost anywhere. Figures are the profile's, for what was measured see
//! `tests/oracles/host_time.py`.

use crate::program::{Dispatch, Kernel, Program};

/// Tells apart who launches a program's kernels.
pub(super) fn launched_by_modules(program: &mut Program) {
    for kernel in &mut program.kernels {
        kernel.dispatch = launched_by(kernel);
    }
}

fn launched_by(kernel: &Kernel) -> Dispatch {
    let fused = kernel.name.starts_with("fused_");
    match kernel.dispatch {
        Dispatch::EagerForward if kernel.name.starts_with("te.") => Dispatch::TransformerEngineForward,
        Dispatch::EagerBackward if kernel.name.starts_with("te.") => Dispatch::TransformerEngineBackward,
        Dispatch::EagerForward if fused => Dispatch::ModuleForward,
        Dispatch::EagerBackward if fused => Dispatch::ModuleBackward,
        other => other,
    }
}
