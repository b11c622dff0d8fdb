//! Whether the chip's memory is enough for a step as it stands. Where it is not, the compiler shortens lives
//! (openxla/xla, `xla/hlo/transforms/simplifiers/hlo_rematerialization.cc`): what it could have again at the end of a long
//! stretch without use is dropped at its beginning.
//!
//! What it drops was read off steps of v6e that are near the limit or beyond it (`tests/oracles/xla_steps.json`): weights
//! gathered for two uses, whose second use gathers them again; where that is not enough, the sum behind attention's projection,
//! and values: each the result of one matmul of what is there anyway.

use crate::program::{Instr, Program};
use crate::units::Bytes;

/// Whether there is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Room {
    /// The step is written as it is fastest.
    Ample,
    /// What costs least goes: weights are gathered for each use.
    Scarce,
    /// Results of matmuls, too.
    Short,
}

/// The most that a program holds at once.
pub(super) fn held(program: &Program) -> Bytes {
    let (mut live, mut most) = (0_u64, 0);
    for instr in program.before_second().chain(&program.step) {
        match *instr {
            Instr::Alloc { buffer } => live += program.buffer(buffer).bytes.0,
            Instr::Free { buffer } => live -= program.buffer(buffer).bytes.0,
            _ => {}
        }
        most = most.max(live);
    }
    Bytes(most)
}
