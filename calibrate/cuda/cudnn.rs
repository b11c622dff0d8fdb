//! cuDNN's backend graph API: graphs of matmuls, pointwise operations and reductions that cuDNN fuses into one kernel.
//!
//! ```text
//! Graph (plain data) ── plan() ──► tensor, operation and graph descriptors ──► heuristic ──► execution plan
//! ```
//!
//! The names and numbers are `cudarc`'s bindings of `cudnn_backend.h`. The functions are called through a table of our
//! own ([`api`]), in which a status is a number: a newer cuDNN may return one that the bindings' enum does not have,
//! which no Rust program may even look at.

mod api;
mod descriptor;
mod graph;
mod plan;

pub use api::{Api, Handle};
pub use graph::{Graph, Mode, Reduce, Tensor, Type};
pub use plan::{Call, Plan, Target};
