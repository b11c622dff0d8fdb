//! Traces of real runs, read into one plain struct whatever program wrote them: PyTorch's profiler, Nsight Systems, XLA's profiler.
//!
//! A new format is a file in this folder and a line in the table of formats.

mod id;
mod parts;

pub use id::Id;
pub use parts::{
    Arg, Call, CallKind, Collective, CollectiveKind, Device, Format, Group, Kernel, Kind, Machine, Name, Names, Op,
    Scope, Signature, Step, Tensor, Thread, Trace, Window,
};
