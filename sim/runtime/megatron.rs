//! Megatron-Core: tensor, sequence, context, pipeline and data parallelism as its own training loop issues them.

mod job;
mod seam;

pub use job::{Block, Core, Fp8Recipe, Gradients, Implementation, Job, Matmuls, Mesh, Optimizer, Pipeline, Recompute};
pub use seam::compile;
