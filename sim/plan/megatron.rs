//! A Megatron-Core training job, fully decided. Names are those of Megatron's arguments (`megatron/training/arguments.py`,
//! `core/transformer/transformer_config.py`, `core/distributed/distributed_data_parallel_config.py`, 0.16.1).

mod block;
mod context;
mod fsdp;
mod graphs;
mod loader;
mod mesh;
mod mixture;
mod optimizer;

pub use block::{Again, Block, Core, Implementation, Recompute};
pub use context::{CpCommType, Parts, Sharing};
pub use fsdp::{Fsdp, Strategy};
pub use graphs::{CudaGraphs, Scope};
pub use loader::Loader;
pub use mesh::Mesh;
pub use mixture::{ExpertCapacity, Mixture, TokenDispatcher};
pub use optimizer::Optimizer;

use crate::model::ModelConfig;
use crate::model::megatron::Fp8;
pub use crate::model::megatron::{CrossEntropy, Fp8Recipe, Scatter};
use crate::model::style::NormCode;
use crate::plan::eager::Settings;
use crate::program::{DType, Dispatch};
use crate::schedule::order::Entry;
use crate::schedule::order::vocabulary::Spread;
use crate::schedule::{Batching, Shape};

/// Whose training loop runs Megatron's modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Engine {
    /// Megatron's own (`core/pipeline_parallel/schedules.py`, `training.py`).
    Core,
    /// DeepSpeed's `PipelineEngine` (`super::deepspeed`), in Megatron-DeepSpeed.
    DeepSpeed,
}

/// The pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Pipeline {
    /// Who runs what when.
    pub schedule: &'static Entry,
    /// Stages on each rank (`--num-layers-per-virtual-pipeline-stage` says how long they are).
    pub virtual_stages: u32,
    /// Blocks of each stage, the model's first stage first; `mesh.pp · virtual_stages` numbers.
    pub layers: Vec<u64>,
    /// `--overlap-p2p-communication` of interleaved schedules: sends and receives of a step wait only where they are used.
    pub overlap_p2p: bool,
    /// `--no-scatter-gather-tensors-in-pipeline` unset, in Megatron-LM from February 2021 to March 2023: of an activation
    /// that all tensor-parallel ranks hold each sends a part, and the receivers gather it (`megatron/p2p_communication.py`).
    pub scatter_gather: bool,
}

/// How tensor-parallel ranks' user buffers are configured (`--tp-comm-overlap-cfg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Overlap {
    /// Whether matmuls that run beside a whole exchange leave processors to its kernel (`set_sm_margin`).
    pub bulk_margin: bool,
    /// How the sum of attention's projection is scattered (`proj_fprop`).
    pub proj: Scatter,
    /// How that of the feed-forward's second linear is (`fc2_fprop`).
    pub fc2: Scatter,
}

impl Default for Overlap {
    /// As Transformer Engine has it from 2.0 on (`get_default_config`).
    fn default() -> Overlap {
        Overlap { bulk_margin: true, proj: Scatter::Pipeline(16), fc2: Scatter::Pipeline(16) }
    }
}

/// How linears multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Matmuls {
    /// In the parameters' type.
    Plain,
    /// In fp8 by Transformer Engine (`--fp8-format`).
    Fp8 {
        /// The recipe.
        recipe: Fp8Recipe,
        /// Whether parameters are kept, and gathered, in fp8 (`--fp8-param-gather`).
        parameters: bool,
    },
}

impl Matmuls {
    /// What the linears of a block are told; none: no fp8.
    pub fn fp8(self) -> Option<Fp8> {
        match self {
            Matmuls::Plain => None,
            Matmuls::Fp8 { recipe, parameters } => Some(Fp8 { recipe, parameters, original: false }),
        }
    }

    /// Whether maxima are reduced over ranks after each forward and each backward of a chunk.
    pub fn reduces_maxima(self) -> bool {
        matches!(self, Matmuls::Fp8 { recipe: Fp8Recipe::Delayed, .. })
    }
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
    /// Whose training loop.
    pub engine: Engine,
    /// The model; its vocabulary is padded ([`MegatronPlan::padded_vocabulary`]).
    pub model: ModelConfig,
    /// Where micro-batches come from.
    pub loader: Loader,
    /// `--micro-batch-size`.
    pub batch: u64,
    /// `--seq-length`.
    pub seq: u64,
    /// Micro-batches of a step on each replica.
    pub micro_batches: u32,
    /// Ranks.
    pub mesh: Mesh,
    /// `--sequence-parallel`.
    pub sequence_parallel: bool,
    /// `--tp-comm-overlap`: gathers and scatters of tensor-parallel ranks run in parts beside the matmuls they feed.
    pub overlap_tensor: Option<Overlap>,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// How blocks are written.
    pub block: Block,
    /// How experts are run; none: the model has none.
    pub mixture: Option<Mixture>,
    /// How linears multiply.
    pub matmuls: Matmuls,
    /// Type of parameters and activations (`--bf16`, `--fp16`).
    pub dtype: DType,
    /// Gradients.
    pub gradients: Gradients,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Megatron-FSDP in place of buckets.
    pub fsdp: Option<Fsdp>,
    /// `--make-vocab-size-divisible-by`.
    pub vocabulary_multiple: u64,
    /// `--no-check-for-nan-in-loss-and-grad` unset: a number is read back after each micro-batch's loss and before the
    /// gradients are reduced.
    pub checks_for_nan: bool,
    /// What is captured in CUDA graphs.
    pub graphs: CudaGraphs,
    /// cuBLAS workspace \[B\].
    pub workspace: u64,
    /// Whether it stays taken once used (PyTorch before 2.15).
    pub persistent_workspace: bool,
    /// Multiprocessors of the chip, which size the buffers of reductions.
    pub multiprocessors: u32,
    /// Whether blocks of FlashAttention 2's backward add up gradients of queries of their own (`--deterministic-mode`).
    pub copies_gradients: bool,
}

impl MegatronPlan {
    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        self.batch * self.seq * u64::from(self.micro_batches) * u64::from(self.mesh.dp)
    }

    /// Whether ranks can share sequences of `seq` tokens: each has two parts of them, one from each end, and under sequence
    /// parallelism tensor-parallel ranks share those.
    pub fn splits(&self, seq: u64) -> bool {
        let (tp, cp) = (u64::from(self.mesh.tp), u64::from(self.mesh.cp));
        let parts = if cp > 1 { 2 * cp } else { 1 };
        seq.is_multiple_of(parts) && (!self.sequence_parallel || (seq / cp).is_multiple_of(tp))
    }

    /// Words of the embedding: a multiple of `--make-vocab-size-divisible-by` times the tensor-parallel ranks
    /// (`megatron/training/tokenizer/tokenizer.py`, `_vocab_size_with_padding`).
    pub fn padded_vocabulary(&self) -> u64 {
        self.model.vocab.next_multiple_of(self.vocabulary_multiple * u64::from(self.mesh.tp))
    }

    /// What the job's schedule is a function of.
    pub fn shape(&self) -> Shape {
        Shape { ranks: self.mesh.pp, virtual_stages: self.pipeline.virtual_stages, microbatches: self.micro_batches }
    }

    /// Whether a step's forward and backward run block beside block (`--overlap-moe-expert-parallel-comm`).
    pub fn combines(&self) -> bool {
        let batching = (self.pipeline.schedule.batching)(self.shape());
        matches!(batching, Batching::Stepwise(settings) if settings.overlap_experts)
    }

    /// Whether experts that every token passes run beside the way to the others (`--moe-shared-expert-overlap`).
    pub fn runs_shared_beside(&self) -> bool {
        let shared = self.model.experts.as_ref().is_some_and(|experts| experts.shared > 0);
        shared && self.mixture.is_some_and(|run| run.shared_overlap)
    }

    /// How pipeline ranks meet over the vocabulary, where the schedule spreads it over them.
    pub fn spread(&self) -> Option<Spread> {
        match (self.pipeline.schedule.batching)(self.shape()) {
            Batching::Vocabulary(spread) => Some(spread),
            _ => None,
        }
    }

    /// How modules run eagerly: Megatron's own with Python around operators; Transformer Engine's is with its kernels (`python.rs`).
    pub fn modules(&self) -> Settings {
        match self.block.implementation {
            Implementation::Local => {
                Settings { forward: Dispatch::ModuleForward, backward: Dispatch::ModuleBackward, ..self.eager() }
            }
            Implementation::TransformerEngine => self.eager(),
        }
    }

    /// How modules run eagerly.
    pub fn eager(&self) -> Settings {
        Settings {
            workspace: self.workspace,
            persistent_workspace: self.persistent_workspace,
            fused_rms_norm: true,
            norm_code: NormCode::Torch,
            layer_norm: self.block.layer_norm,
            bias_tensor: false,
            multiprocessors: self.multiprocessors,
            early_stop: false,
            copies_gradients: self.copies_gradients,
            attention_reads_back: false,
            flex_attention: false,
            unnamed_logits: false,
            offload: None,
            forward: Dispatch::EagerForward,
            backward: Dispatch::EagerBackward,
        }
    }
}
