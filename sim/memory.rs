//! Memory over a training step: the program's allocations and frees, replayed through PyTorch's allocator.
//!
//! Three answers that must not be confused: *allocated* is what tensors occupy in blocks of the allocator, *reserved* is
//! what the allocator took from the device (the larger, and what most logs print), *device total* adds what lives
//! outside the allocator (CUDA context, NCCL buffers). [`caching`] is the allocator, [`mod@replay`] runs a program through it.

pub mod caching;
mod calls;
mod fixed;
mod granted;
pub mod replay;
pub mod report;
mod rounds;

pub use caching::{Allocator, OutOfMemory, Settings};
pub use calls::DeviceCalls;
pub use replay::replay;
pub use report::{Breakdown, MemoryReport, Phase};
