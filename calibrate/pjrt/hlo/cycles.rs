//! The compiler's own estimates of how long fusions take.
//!
//! TPU's compiler notes `estimated_cycles` where it chose a fusion's window. It has nothing to say of collectives, copies,
//! gathers and kernels written by hand.

use super::flow::{Entered, entered};
use super::{Instruction, Module};

/// Of a whole step, each as often as it runs \[cycles\]; none if no instruction has one.
pub fn cycles(module: &Module) -> Option<u64> {
    let mut sum = None;
    for Entered { computation, times } in entered(module).0 {
        for cycles in computation.instructions.iter().filter_map(noted) {
            *sum.get_or_insert(0) += times * cycles;
        }
    }
    sum
}

/// What the compiler notes for an instruction.
pub fn noted(instruction: &Instruction) -> Option<u64> {
    let notes: serde_json::Value = serde_json::from_slice(&instruction.backend).ok()?;
    notes.pointer("/window_config/estimated_cycles")?.as_str()?.parse().ok()
}
