//! A Megatron-Core training job, fully decided. Names are those of Megatron's arguments (`megatron/training/arguments.py`,
//! `core/transformer/transformer_config.py`, `core/distributed/distributed_data_parallel_config.py`, 0.16.1).

mod block;
mod context;
mod fsdp;
mod graphs;
mod loader;
mod matmuls;
mod mesh;
mod mixture;
mod optimizer;
mod pipeline;
mod split;

pub use block::{Block, Core, Implementation, Recompute, RecomputeModules, Release};
pub use context::{CpCommType, Parts, Sharing};
pub use fsdp::{Fsdp, Strategy};
pub use graphs::{CudaGraphs, Scope};
pub use loader::Loader;
pub use matmuls::{Matmuls, Overlap};
pub use mesh::Mesh;
pub use mixture::{ExpertCapacity, Mixture, TokenDispatcher};
pub use optimizer::Optimizer;
pub use pipeline::Pipeline;
pub use split::Split;

pub use crate::model::megatron::{CrossEntropy, Fp8Recipe, Scatter};
use crate::program::DType;

/// Whose training loop runs Megatron's modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Engine {
    /// Megatron's own (`core/pipeline_parallel/schedules.py`, `training.py`).
    Core,
    /// DeepSpeed's `PipelineEngine`, in Megatron-DeepSpeed.
    DeepSpeed,
}

/// `DistributedDataParallelConfig`, and how gradients are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Gradients {
    /// Type of the main gradients (`grad_reduce_in_fp32`, `--accumulate-allreduce-grads-in-fp32`).
    pub dtype: DType,
    /// Whether the matmul of a weight gradient adds it to the main gradient (`--gradient-accumulation-fusion`).
    pub fused_accumulation: bool,
    /// `--overlap-grad-reduce`: a bucket is reduced as soon as the last micro-batch has made it.
    pub overlap_reduce: bool,
    /// Parameters of a bucket, at least; none: one bucket (`bucket_size`; by default none without overlap, else the larger
    /// of 40 million and one million for each data-parallel rank).
    pub bucket: Option<u64>,
}

/// A training job under Megatron-Core, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct MegatronPlan {
    /// The model, how ranks share it, and how its modules are written.
    pub split: Split,
    /// Whose training loop.
    pub engine: Engine,
    /// Where micro-batches come from.
    pub loader: Loader,
    /// Gradients.
    pub gradients: Gradients,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Megatron-FSDP in place of buckets.
    pub fsdp: Option<Fsdp>,
    /// `--no-check-for-nan-in-loss-and-grad` unset: a number is read back after each micro-batch's loss and before the
    /// gradients are reduced.
    pub checks_for_nan: bool,
    /// What is captured in CUDA graphs.
    pub graphs: CudaGraphs,
}
