//! Megatron-Core: tensor, sequence, context, pipeline and data parallelism as its own training loop issues them.

mod blocks;
mod chunk;
mod job;

pub use chunk::{Chunk, ChunkFrame, ChunkParam, LossReport};
pub use job::{Block, Core, Fp8Recipe, Gradients, Implementation, Job, Matmuls, Mesh, Optimizer, Pipeline, Recompute};
