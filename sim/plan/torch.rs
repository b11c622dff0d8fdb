//! A training job of PyTorch's own runtimes, fully decided.

mod checkpoint;
pub mod ddp;
pub mod fsdp;
mod looped;
mod pipeline;
mod preference;
mod rotate;

pub use checkpoint::Checkpoint;
pub use looped::{KeepLogits, Loop};
pub use pipeline::{Order, Pipeline};
pub use preference::Reference;
pub use rotate::{Method, Rotate};

use super::eager::Settings;
use super::optimizer::Optimizer;
use crate::model::ModelConfig;
use crate::model::documents::Documents;
use crate::model::fuse::Float8;
use crate::model::head::Loss;
use crate::model::preference::SEQUENCES_OF_A_PAIR;
use crate::model::style::Style;
use crate::model::tensor::TensorParallel;
use crate::model::trained::Trained;
use crate::program::DType;
use ddp::Ddp;
use fsdp::{Fsdp, Reshard, Version};

/// `torch.autocast` in bf16 around forward and loss of fp32 parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Autocast {
    /// Whether it keeps the weights it has cast until it ends (`cache_enabled`).
    pub cache: bool,
}

/// How parameters are initialised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Initialisation {
    /// In place, or elsewhere: nothing is left.
    #[default]
    InPlace,
    /// Linears by `trunc_normal_` of sharded parameters.
    TruncatedNormal,
}

/// A training job, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct TorchPlan {
    /// The model.
    pub model: ModelConfig,
    /// Sequences per micro-batch and rank; of a loss over pairs two of each.
    pub batch: u64,
    /// Tokens per sequence.
    pub seq: u64,
    /// Documents of a sequence, where attention stays inside each; none: it sees the whole sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
    /// Micro-batches per step.
    pub accumulation: u32,
    /// Whether every micro-batch reduces its gradients, or only the last.
    pub sync_every: bool,
    /// Whether the loop tells FSDP which micro-batch is the last (`set_is_last_backward`).
    pub marks_last: bool,
    /// Whether parameters stay gathered after the backward of every micro-batch but the last
    /// (`set_reshard_after_backward(False)`).
    pub keeps_gathered: bool,
    /// Whether replicas all-reduce what a micro-batch reduced, or only once, with the last one
    /// (`set_requires_all_reduce(False)`, HSDP).
    pub all_reduce_every: bool,
    /// FSDP.
    pub fsdp: Fsdp,
    /// `DistributedDataParallel`, where that is around a model which nothing shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ddp: Option<Ddp>,
    /// How the model is split over tensor-parallel ranks, before FSDP shards what each has.
    pub tensor: TensorParallel,
    /// Ranks that share a sequence; FSDP shards over them too.
    pub context: u32,
    /// How those get each other's keys and values.
    pub rotate: Rotate,
    /// How stages of the model take turns, where it is cut into some: each stage is a root of FSDP.
    pub pipeline: Option<Pipeline>,
    /// Activation checkpointing.
    pub checkpoint: Checkpoint,
    /// Whether checkpoints are reentrant (`use_reentrant=True`).
    pub reentrant: bool,
    /// Whether they stand around sharded blocks, so that `fully_shard`'s hooks run inside them: of reentrant ones it makes a
    /// difference.
    pub around_hooks: bool,
    /// Eager settings.
    pub eager: Settings,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Whether the optimizer has copies of all parameters in fp32, which it steps and writes back.
    pub master_weights: bool,
    /// Whether each parameter's gradient is multiplied by a number before the step, one after the other.
    pub scale_gradients: bool,
    /// Whether each parameter is stepped as soon as its gradient is there, which then goes.
    pub step_in_backward: bool,
    /// Whether gradients are clipped to a norm.
    pub clip: bool,
    /// Rows of the rotary table kept as a buffer.
    pub max_positions: u64,
    /// Autocast, where it is on.
    pub autocast: Option<Autocast>,
    /// Whether each block is compiled on its own (`torch.compile` of every block before `fully_shard`).
    pub compile: bool,
    /// Linears of compiled blocks in fp8, where they are.
    pub float8: Option<Float8>,
    /// Whether checkpoints stand around compiled blocks, or are compiled with them.
    pub checkpoint_compiled: bool,
    /// Whether attention runs on tokens packed without padding ([`crate::model::unpad`]).
    pub unpad: bool,
    /// Whether forward, loss and backward of a micro-batch are one CUDA graph (torchtitan 0.3.0).
    pub cuda_graphs: bool,
    /// How parameters are initialised, where that leaves blocks in the allocator's cache.
    pub initialisation: Initialisation,
    /// What is trained, where not all of the model is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<Trained>,
    /// How the model's code is written.
    pub style: Style,
    /// Loss.
    pub loss: Loss,
    /// The reference model of a loss over pairs, where the loss is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// What the loop does besides.
    pub training_loop: Loop,
    /// How long the loop's variable holds the logits.
    pub keep_logits: KeepLogits,
    /// Whether the model's own forward computes the loss (`labels=`), after which alone FSDP's root hears of its end; labels
    /// are then shifted, and padded for that.
    pub loss_inside: bool,
    /// Type the root's output is cast to (`MixedPrecisionPolicy.output_dtype`).
    pub output: Option<DType>,
}

impl TorchPlan {
    /// The type that matmuls multiply in.
    pub fn multiplies_in(&self) -> DType {
        if self.autocast.is_some() { DType::Bf16 } else { self.fsdp.mixed_precision.compute() }
    }

    /// Ranks that each have data of their own, if only parts of the same sequence.
    pub fn data_ranks(&self) -> u32 {
        self.fsdp.shard * self.fsdp.replicate
    }

    /// Ranks of the whole job.
    pub fn ranks(&self) -> u32 {
        self.data_ranks() * self.tensor.ranks as u32 * self.pipeline.as_ref().map_or(1, |pipeline| pipeline.ranks)
    }

    /// Bytes of an element of what is trained.
    pub fn trained_bytes(&self) -> u64 {
        let adapters = self.trained.as_ref().and_then(|trained| trained.lora.as_ref());
        adapters.filter(|lora| lora.own_type).map_or(self.fsdp.mixed_precision.storage, |lora| lora.dtype).bytes()
    }

    /// Whether the head stays gathered after the model's forward in the first step alone: a loss that gathers it itself sets its
    /// policy for all steps after (`torchtitan/components/loss.py:769`, 0.3.0).
    pub(crate) fn first_step_keeps_head(&self) -> bool {
        let unshards = matches!(self.loss, Loss::ChunkedGradients { unshards: true, .. });
        unshards && self.pipeline.is_none() && self.fsdp.wrap.head.is_some_and(|policy| policy != Reshard::Always)
    }

    /// Whether the first step is another than those after it.
    pub(crate) fn first_step_differs(&self) -> bool {
        self.cuda_graphs || self.first_step_keeps_head() || self.reference_stays_gathered()
    }

    /// Whether a second model is there as the reference.
    pub(crate) fn has_reference(&self) -> bool {
        self.reference == Some(Reference::Model)
    }

    /// Whether that model is sharded. What its root keeps after the first forward stays: no backward lets go of it.
    fn reference_stays_gathered(&self) -> bool {
        self.has_reference() && self.fsdp.version == Version::Two
    }

    /// Sequences of a sample: two of a pair, else one.
    pub fn sequences_of_a_sample(&self) -> u64 {
        if self.reference.is_some() { SEQUENCES_OF_A_PAIR } else { 1 }
    }

    /// Tokens of a sequence that one rank has.
    pub fn own_tokens(&self) -> u64 {
        self.seq / u64::from(self.context)
    }

    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        self.batch * self.own_tokens() * u64::from(self.accumulation) * u64::from(self.data_ranks())
    }
}
