//! Traces of real runs, read into one plain struct whatever program wrote them: PyTorch's profiler, Nsight Systems, XLA's profiler.
//!
//! A new format is a file in this folder and a line in the table of formats.

mod class;
mod draft;
mod error;
mod id;
mod intern;
mod join;
mod kineto;
mod nccl;
mod notes;
mod nsight;
mod parts;
mod read;
mod signature;
mod spent;
mod split;
mod steps;
mod xla;

pub use class::{Class, Classes};
pub use error::Error;
pub use id::Id;
pub use parts::{
    Arg, Call, CallKind, Collective, CollectiveKind, Device, Format, Group, Instruction, Kernel, Kind, Machine, Name,
    Names, Op, Scope, Signature, Step, Tensor, Thread, Trace, Window,
};
pub use read::{Progress, read};
pub use signature::element_bytes;
pub use spent::{Gap, Spent, Timeline};

#[cfg(test)]
mod tests;
