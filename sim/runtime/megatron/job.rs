//! A Megatron-Core training job, fully decided. Names are those of Megatron's arguments (`megatron/training/arguments.py`,
//! `core/transformer/transformer_config.py`, `core/distributed/distributed_data_parallel_config.py`, 0.16.1).

mod context;
mod fsdp;
mod graphs;
mod loader;
mod mixture;
mod optimizer;

pub use context::{CpCommType, Parts, Sharing};
pub use fsdp::{Fsdp, Strategy};
pub use graphs::{CudaGraphs, Scope};
pub use loader::Loader;
pub use mixture::{ExpertCapacity, Mixture, TokenDispatcher};
pub use optimizer::Optimizer;

use crate::model::ModelConfig;
use crate::model::megatron::Fp8;
pub use crate::model::megatron::{CrossEntropy, Fp8Recipe, Scatter};
use crate::model::style::NormCode;
use crate::program::{DType, Dispatch, Group};
use crate::runtime::eager::{LayerNorm, Settings};
use crate::schedule::order::Entry;
use crate::schedule::order::vocabulary::Spread;
use crate::schedule::{Batching, Shape};
use crate::units::Bytes;

/// How many ranks each axis has. Ranks are counted `tp-cp-dp-pp`, the first fastest (`--use-tp-pp-dp-mapping` unset;
/// `core/parallel_state.py`, `initialize_model_parallel`, order `tp-cp-ep-dp-pp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Mesh {
    /// `--tensor-model-parallel-size`.
    pub tp: u32,
    /// `--context-parallel-size`.
    pub cp: u32,
    /// How those ranks share a sequence.
    pub sharing: Sharing,
    /// Replicas of the model: what the other axes leave.
    pub dp: u32,
    /// `--pipeline-model-parallel-size`.
    pub pp: u32,
    /// `--expert-model-parallel-size`: ranks of a stage that experts are spread over.
    pub ep: u32,
    /// `--expert-tensor-parallel-size`: ranks that each expert is split over.
    pub etp: u32,
}

impl Mesh {
    /// Ranks of the job.
    pub fn ranks(self) -> u32 {
        self.tp * self.cp * self.dp * self.pp
    }

    /// Ranks of one pipeline stage, which all run the same program.
    pub fn ranks_of_stage(self) -> u32 {
        self.tp * self.cp * self.dp
    }

    /// Elements of a bucket of gradients where a file leaves it open (`core/distributed/distributed_data_parallel.py`).
    pub fn bucket(self) -> u64 {
        40_000_000.max(1_000_000 * u64::from(self.dp * self.cp))
    }

    /// Tensor-parallel ranks: neighbours.
    pub fn tensor(self) -> Group {
        Group::new("tp", self.tp, 1)
    }

    /// The same as they write into each other's buffers, by kernels that slow those beside them or do not.
    pub fn user_buffers(self, bytes: Bytes, slows: bool) -> Group {
        Group { user_buffers: Some(bytes), slows, ..Group::new("tp user buffers", self.tp, 1) }
    }

    /// Ranks that share a sequence.
    pub fn context(self) -> Group {
        Group::new("cp", self.cp, self.tp)
    }

    /// Those of them among which heads are spread: neighbours but for tensor-parallel ranks (`create_hierarchical_groups`).
    pub fn context_heads(self) -> Group {
        Group::new(if self.sharing.heads < self.cp { "cp_a2a" } else { "cp" }, self.sharing.heads, self.tp)
    }

    /// Those of them among which tokens are spread.
    pub fn context_tokens(self) -> Group {
        let heads = self.sharing.heads;
        if heads == 1 { self.context() } else { Group::new("cp_p2p", self.cp / heads, self.tp * heads) }
    }

    /// Ranks with the same parameters: over them gradients are reduced and optimizer states sharded.
    pub fn data(self) -> Group {
        Group::new(if self.cp > 1 { "dp_cp" } else { "dp" }, self.dp * self.cp, self.tp)
    }

    /// Ranks that experts are spread over. Of a stage's ranks those that share an expert are neighbours, then come those
    /// with other experts, then those with the same (order `tp-cp-ep-dp-pp` over experts' own sizes).
    pub fn experts(self) -> Group {
        Group::new("ep", self.ep, self.etp)
    }

    /// Ranks that share an expert.
    pub fn expert_tensor(self) -> Group {
        Group::new("etp", self.etp, 1)
    }

    /// Both, which have all experts once.
    pub fn all_experts(self) -> Group {
        Group::new("etp_ep", self.etp * self.ep, 1)
    }

    /// Ranks with the same experts: over them their gradients are reduced and their optimizer states sharded.
    pub fn expert_data(self) -> Group {
        let span = self.etp * self.ep;
        Group::new("expert_dp", self.ranks_of_stage() / span, span)
    }

    /// Whether experts are spread over ranks, and their parameters kept apart from the others.
    pub fn spreads_experts(self) -> bool {
        self.ep > 1
    }

    /// Ranks that share a sequence, in either way: experts' load is balanced over them.
    pub fn sequence(self) -> Group {
        Group::new("tp_cp", self.tp * self.cp, 1)
    }

    /// The ranks of one stage, over which maxima of fp8 numbers are reduced
    /// (`TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP`).
    pub fn stage(self) -> Group {
        Group::new("amax", self.ranks_of_stage(), 1)
    }

    /// The stages of a pipeline.
    pub fn pipeline(self) -> Group {
        Group::new("pp", self.pp, self.ranks_of_stage())
    }

    /// The first and the last stage, which share a tied embedding.
    pub fn embedding(self) -> Group {
        Group::ends("embedding", self.pp, self.ranks_of_stage())
    }

    /// All parts of one replica (`get_model_parallel_group`): gradient norms are summed over it.
    pub fn world(self) -> Group {
        Group::new("world", self.ranks(), 1)
    }
}

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

/// Which modules a block is made of (`--transformer-impl`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Implementation {
    /// Megatron's own modules.
    Local,
    /// Transformer Engine's: fused norm and linear, fused attention.
    TransformerEngine,
}

/// How scores become a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Core {
    /// Batched matmuls around a scaled, masked softmax (`core/transformer/dot_product_attention.py`).
    Unfused {
        /// Whether scale, mask and softmax are one kernel (`--masked-softmax-fusion`).
        fused_softmax: bool,
    },
    /// One kernel for all of it, forward and backward: FlashAttention or cuDNN's, whichever the software has.
    Flash,
}

/// What is run again in backward (`--recompute-granularity`, `--recompute-method`, `--recompute-num-layers`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Recompute {
    /// Nothing.
    None,
    /// The attention core (`selective`, module `core_attn`).
    Core,
    /// Whole blocks, `layers` of them as one: the input of each such group is kept (`full`, `uniform`).
    Uniform {
        /// `--recompute-num-layers`.
        layers: u64,
    },
    /// The first `layers` blocks of each stage, each on its own (`full`, `block`).
    Block {
        /// `--recompute-num-layers`.
        layers: u64,
    },
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

/// Parts of a block that are run again in backward (`--recompute-modules`), beside attention's core. Of norms, the experts'
/// activation and what latent attention makes of its short vectors the results are let go of, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Again {
    /// `layernorm`: the norms before attention and before the feed-forward that are modules of their own.
    pub norms: bool,
    /// `moe_act`: the activation of experts.
    pub activation: bool,
    /// `mla_up_proj`: queries, keys and values of latent attention.
    pub up_projection: bool,
    /// `mlp`: the feed-forward of a block without experts.
    pub feed_forward: bool,
    /// `moe`: the mixture of experts.
    pub mixture: bool,
    /// `shared_experts`: the experts that every token passes.
    pub shared: bool,
}

/// How a block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Block {
    /// Whose modules.
    pub implementation: Implementation,
    /// Whose kernels LayerNorm is, of Megatron's own modules (`--no-persist-layer-norm`).
    pub layer_norm: LayerNorm,
    /// Attention's core.
    pub core: Core,
    /// Whether there is dropout on what is added to the hidden state (`--hidden-dropout` above 0).
    pub hidden_dropout: bool,
    /// Whether there is dropout on attention's probabilities (`--attention-dropout` above 0).
    pub attention_dropout: bool,
    /// Whether bias and activation are one kernel (`--bias-gelu-fusion`, `--bias-swiglu-fusion`).
    pub fused_activation: bool,
    /// Whether bias, dropout and residual are one kernel (`--bias-dropout-fusion`).
    pub fused_dropout: bool,
    /// Whether rotary embeddings are one kernel (`--apply-rope-fusion`).
    pub fused_rope: bool,
    /// Whose kernels the loss over the vocabulary is made of (`--cross-entropy-loss-fusion`, `--cross-entropy-fusion-impl`).
    pub cross_entropy: CrossEntropy,
    /// What is run again in backward.
    pub recompute: Recompute,
    /// Which parts of it are, besides.
    pub again: Again,
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
