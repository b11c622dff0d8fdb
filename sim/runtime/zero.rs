//! DeepSpeed's ZeRO without a pipeline: when gradients are reduced and parameters gathered, and how many at a time
//! (`deepspeed/runtime/zero/`, 0.19.6).
//!
//! ```text
//! gradient ready ─► bucket ─► all-reduces of its owners' pieces (1, 2), a reduce-scatter (3)      reduce.rs
//! module begins ─► gathers now, and ahead; module ends ─► parameters let go (3)                   gather.rs
//! ```
//!
//! Order and sizes equal DeepSpeed's own in every case of `tests/oracles/deepspeed-zero.json`. No scenario asks for them yet:
//! what a step allocates around them has no rules here.

mod gather;
mod reduce;

pub use gather::{Coordinator, Gathering, gathered_elements};
pub use reduce::{Buckets, Partition, Reduction, Scatters};
