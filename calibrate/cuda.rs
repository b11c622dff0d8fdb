//! `calibrate cuda`: measures what kernels cost on this machine's GPU, and writes points for `calibrate fit`.
//!
//! `open` finds libraries and a device, a [`sweep::Sweep`] plans and prepares things to measure, `timer` times them,
//! `journal` keeps the points, `session` decides what comes next. Nothing of CUDA is needed to build or to start.

mod attention;
mod command;
mod cudnn;
mod device;
mod error;
mod hostcopy;
mod library;
mod list;
mod machine;
mod matmul;
mod memory;
mod nccl;
mod nvml;
mod open;
mod overhead;
mod overlap;
mod session;
mod sweep;
mod timer;

pub use command::{Arguments, run};
pub use memory::memory_kernel;

/// Everything that can be measured. To add a sweep: a file, and a line here.
fn sweeps() -> Vec<Box<dyn sweep::Sweep>> {
    vec![
        Box::new(matmul::Matmul::default()),
        Box::new(matmul::Grouped::default()),
        Box::new(attention::Attention::default()),
        Box::new(memory::Memory),
        Box::new(hostcopy::HostCopies),
        Box::new(overlap::Overlap::attention()),
        Box::new(overhead::Overheads),
        Box::new(overlap::Overlap::default()),
        Box::new(nccl::Collectives::default()),
    ]
}
