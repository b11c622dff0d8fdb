//! The file as written: serde's view, nothing decided. Unknown keys are errors.

#[macro_use]
mod fill;

mod documents;
mod dpo;
mod experts;
mod failures;
mod float8;
mod framework;
mod internevo;
mod loss;
mod megatron;
mod mesh;
mod nanotron;
mod ranks;
mod readings;
mod sharding;
mod torch_xla;
mod trained;
mod xla;
mod zero;

pub use documents::{DocumentLength, Documents, Lognormal, Packing};
pub use dpo::{Dpo, PreferenceCode, Reference};
pub use experts::{ExpertLoad, ExpertStyle};
pub use failures::{Checkpoint, Every, Failures, Spares};
pub use fill::Defaults;
pub use float8::{Float8, LinearStyle, Recipe as Float8Recipe};
pub use framework::{AttentionStyle, Framework, LoadBalancer, ModulesStyle, RopeStyle};
pub use internevo::InternEvo;
pub use loss::{KeepLogits, Loss, LossKind, Until};
pub use megatron::{
    FlexBackend, Fp8, FusedLoss, Graphs, Implementation as Modules, LayerNorm, Megatron, Module, Pipeline, Recompute,
    Scope, Scores, Strategy, TensorScatter, Waited,
};
pub use mesh::Mesh;
pub use nanotron::{Engine, Nanotron, TensorMode};
pub use ranks::{Ranks, Slow, SlowRank};
pub use readings::Readings;
pub use sharding::{
    BackwardPrefetch, CommHook, Ddp, Fsdp, Fsdp1, Override, Reshard, ReshardAfterBackward, ReshardMoment, Unit, Wrap,
};
pub use torch_xla::{TorchAttention, TorchPrecision, TorchXla};
pub use trained::{BaseWeights, Lora, LoraCode, Part, Trained};
pub use xla::{Eight, ExpertExchange, Moment, Xla, XlaAttention};
pub use zero::{Device as ZeroDevice, OffloadOptimizer, OffloadParam, Zero};

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::cost::Backend;
use crate::program::DType;
use crate::units::{Bandwidth, Bytes, Time};

/// A scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What the run is, for reports.
    pub description: Option<String>,
    /// `fsdp2`, `megatron`, …
    pub runtime: Spanned<String>,
    /// The machine.
    pub topology: Topology,
    /// The model.
    pub model: Spanned<Model>,
    /// Mesh axes.
    pub mesh: Spanned<Mesh>,
    /// Batch and sequence.
    pub batch: Batch,
    /// How modules are split over `mesh.tp`.
    pub tensor_parallel: Option<Spanned<TensorParallel>>,
    /// The pipeline over `mesh.pp`.
    pub pipeline: Option<Spanned<Pipeline>>,
    /// What only Megatron-Core has.
    pub megatron: Option<Spanned<Megatron>>,
    /// What only InternEvo has.
    pub internevo: Option<Spanned<InternEvo>>,
    /// What only nanotron has.
    pub nanotron: Option<Spanned<Nanotron>>,
    /// What XLA has.
    pub xla: Option<Spanned<Xla>>,
    /// What only PyTorch/XLA has.
    pub torch_xla: Option<Spanned<TorchXla>>,
    /// What only DeepSpeed's ZeRO has.
    pub zero: Option<Spanned<Zero>>,
    /// Types.
    #[serde(default)]
    pub precision: Precision,
    /// `fully_shard`.
    #[serde(default)]
    pub fsdp: Fsdp,
    /// `FullyShardedDataParallel`.
    #[serde(default)]
    pub fsdp1: Option<Spanned<Fsdp1>>,
    /// `DistributedDataParallel`.
    pub ddp: Option<Spanned<Ddp>>,
    /// `torch.compile`.
    #[serde(default)]
    pub compile: Compile,
    /// torchao's float8 linears.
    pub float8: Option<Spanned<Float8>>,
    /// Which parts of the model are trained.
    pub trained: Option<Spanned<Trained>>,
    /// Adapters beside frozen weights.
    pub lora: Option<Spanned<Lora>>,
    /// Direct preference optimization.
    pub dpo: Option<Spanned<Dpo>>,
    /// The loss.
    #[serde(default)]
    pub loss: Loss,
    /// What the training loop does besides.
    #[serde(default, rename = "loop")]
    pub training_loop: Loop,
    /// What differs between PyTorch's versions.
    #[serde(default)]
    pub framework: Framework,
    /// Activation checkpointing.
    #[serde(default)]
    pub activation_checkpointing: Checkpointing,
    /// Optimizer.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Attention kernels.
    #[serde(default)]
    pub attention: Attention,
    /// Allocator.
    #[serde(default)]
    pub memory: Memory,
    /// How ranks differ from one another.
    pub ranks: Option<Spanned<Ranks>>,
    /// What interrupts the training, and what it takes to go on.
    #[serde(default)]
    pub failures: Failures,
    /// How checkpoints are saved.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// What the run measured, where it has been run.
    pub measured: Option<Spanned<Measured>>,
}

/// `[topology]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// A shipped name, or the path of a topology file.
    pub name: Spanned<String>,
    /// Nodes of it.
    pub nodes: Option<Spanned<i64>>,
    /// Or a slice of it.
    pub slice: Option<Spanned<String>>,
    /// How many such slices, joined by the network between them.
    pub slices: Option<Spanned<i64>>,
    /// Or some chips of one node.
    pub chips: Option<Spanned<i64>>,
    /// A profile of costs other than the topology's own: a shipped name or a path.
    pub profile: Option<Spanned<String>>,
    /// What one GPU's share of the network between nodes carries, one direction, where it is not the topology's.
    pub nic_bandwidth: Option<Spanned<Bandwidth>>,
    /// `burst` or `sustained`.
    pub clocks: Option<Clocks>,
}

/// Clock regime.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Clocks {
    /// Boost clocks.
    Burst,
    /// Under the power limit.
    Sustained,
}

/// `[model]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// A shipped model.
    pub name: Option<Spanned<String>>,
    /// The path of a Hugging Face `config.json`, relative to the scenario.
    pub huggingface: Option<Spanned<String>>,
    /// Keys of a `config.json`: the whole model, or what differs from the named one.
    pub config: Option<BTreeMap<String, Spanned<toml::Value>>>,
    /// Blocks, where the run has other than the model: a proxy of it, or one of its family.
    pub layers: Option<Spanned<i64>>,
    /// Width, of one of the family. Heads then have what divides it.
    pub hidden: Option<Spanned<i64>>,
    /// Query heads, of one of the family; as many key-value heads, if those are not written.
    pub heads: Option<Spanned<i64>>,
    /// Key-value heads, of one of the family.
    pub kv_heads: Option<Spanned<i64>>,
    /// Feed-forward width, of one of the family; by default it grows with the width.
    pub ffn: Option<Spanned<i64>>,
    /// Words, of one of the family or as the run pads them.
    pub vocab: Option<Spanned<i64>>,
    /// Whether the head shares the embedding's matrix, where the run differs from the config.
    pub tied_head: Option<bool>,
    /// Rows of the table of learned positions, where the run differs from the config.
    pub positions: Option<Spanned<i64>>,
    /// How tokens spread over experts.
    pub expert_load: Option<Spanned<ExpertLoad>>,
}

/// `[tensor_parallel]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorParallel {
    /// Whether what lies between split modules is split on the sequence.
    pub sequence: Option<bool>,
    /// Whether the loss takes logits that are split on the vocabulary.
    pub loss: Option<bool>,
    /// Whether compiled blocks exchange in parts that overlap with their matmuls.
    pub asynchronous: Option<Spanned<bool>>,
}

/// `[batch]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Tokens per sequence.
    pub sequence: Spanned<i64>,
    /// Sequences per rank and micro-batch: of chips that share their sequences, of all of them together.
    pub micro: Option<Spanned<i64>>,
    /// `per_device_batch_size` of MaxText: sequences over all chips, those that share sequences included.
    pub per_device_batch_size: Option<Spanned<f64>>,
    /// Micro-batches per step.
    pub accumulation: Option<Spanned<i64>>,
    /// Sequences of a step, of all ranks: `accumulation` follows.
    pub global: Option<Spanned<i64>>,
    /// The same in tokens.
    pub global_tokens: Option<Spanned<i64>>,
    /// How long the documents are that are packed into a sequence, where attention stays inside each.
    pub documents: Option<Spanned<Documents>>,
    /// Whether documents are packed whole, or cut at a sequence's end.
    pub packing: Option<Packing>,
    /// Whether gradients are reduced after every micro-batch.
    pub sync_every_micro_batch: Option<Spanned<bool>>,
    /// Whether the loop calls `set_is_last_backward`.
    pub set_is_last_backward: Option<Spanned<bool>>,
    /// Whether replicas all-reduce after every micro-batch, or only after the last (`set_requires_all_reduce(False)`).
    pub all_reduce_every_micro_batch: Option<Spanned<bool>>,
}

/// `[precision]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precision {
    /// Type of the stored parameters.
    pub storage: Option<Spanned<DType>>,
    /// `MixedPrecisionPolicy.param_dtype`.
    pub param: Option<Spanned<DType>>,
    /// `MixedPrecisionPolicy.reduce_dtype`.
    pub reduce: Option<Spanned<DType>>,
    /// `MixedPrecisionPolicy.output_dtype` of the root: the type logits are handed to the loss in.
    pub output: Option<Spanned<DType>>,
    /// Whether fp32 matmuls run in tf32.
    pub tf32: Option<bool>,
    /// The type of `torch.autocast` around forward and loss; absent: it is off.
    pub autocast: Option<Spanned<DType>>,
    /// `cache_enabled` of it.
    pub autocast_cache: Option<Spanned<bool>>,
}

fill!(Precision { storage, param, reduce, output, autocast, autocast_cache } { tf32 });

/// `[compile]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compile {
    /// Whether each block is compiled on its own.
    pub blocks: Option<bool>,
    /// Whether what fully_shard has made of the model is compiled whole.
    pub model: Option<Spanned<bool>>,
    /// Whether the loss is compiled.
    pub loss: Option<Spanned<bool>>,
}

fill!(Compile { loss, model } { blocks });

impl Compile {
    /// Whether blocks are compiled, on their own or as what a graph break makes of the whole model.
    pub fn compiles_blocks(&self) -> bool {
        self.blocks == Some(true) || self.model.as_ref().is_some_and(|at| *at.get_ref())
    }
}

/// `[loop]`: what a training loop does besides forward, backward and optimizer.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// Cross-entropy metrics computed on the logits of each micro-batch.
    pub train_metrics: Option<Spanned<i64>>,
    /// Numbers read back from the device at the end of a step.
    pub host_syncs_per_step: Option<Spanned<i64>>,
}

fill!(Loop { train_metrics, host_syncs_per_step } {});

/// Policy of activation checkpointing.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Keep everything.
    None,
    /// Recompute every block.
    Full,
    /// Recompute one block in so many, the last of each as torchtitan counts: of two, blocks 1, 3, 5, ….
    Every(i64),
    /// Recompute this share of the blocks, evenly spread.
    Fraction(f64),
    /// torchtitan's operator-level policy.
    SelectiveOp,
    /// Recompute these layers, counted from 0.
    Layers(Vec<Layers>),
    /// Recompute so many layers, from the first on.
    First(i64),
    /// Recompute every layer but for what these operators return.
    Save(Vec<Spanned<String>>),
}

/// Layers, counted from 0.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected a layer, or [first, one after the last]")]
pub enum Layers {
    /// One.
    One(i64),
    /// The first, and the one after the last.
    Range((i64, i64)),
}

/// Where activations are copied to the host and back.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum OffloadStream {
    /// In compute's way.
    DefaultStream,
    /// Beside it.
    OwnStream,
}

/// `[activation_checkpointing]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpointing {
    /// Which.
    pub policy: Option<Spanned<Policy>>,
    /// Whether a recompute stops once backward has what it needs.
    pub early_stop: Option<bool>,
    /// Whether the checkpoint stands around a compiled block, or is compiled with it.
    pub around_compiled: Option<bool>,
    /// Whether the checkpoint is the reentrant one (`torch.utils.checkpoint`, `use_reentrant=True`).
    pub use_reentrant: Option<Spanned<bool>>,
    /// Whether checkpoints stand around sharded layers, whose hooks then run inside them: `checkpoint(layer, x)` in the model's
    /// forward.
    pub around_hooks: Option<Spanned<bool>>,
    /// The stream on which inputs of checkpointed blocks go to the host and come back.
    pub offload: Option<Spanned<OffloadStream>>,
}

fill!(Checkpointing { policy, offload, use_reentrant, around_hooks } { early_stop, around_compiled });

/// `[optimizer]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// `adamw`, `adam`, `sgd`, `decoupled_adamw`, `muon`, `adamw_8bit` or `lion_8bit`.
    pub name: Option<Spanned<String>>,
    /// `fused`, `foreach` or `for_loop`.
    pub implementation: Option<Spanned<String>>,
    /// Weight decay: zero saves a kernel where it is one of its own.
    pub weight_decay: Option<Spanned<f64>>,
    /// SGD's momentum, a state of the size of the parameters unless it is zero.
    pub momentum: Option<Spanned<f64>>,
    /// Whether it is Nesterov's.
    pub nesterov: Option<Spanned<bool>>,
    /// Whether Adam keeps the maximum of its second moments, as a third state.
    pub amsgrad: Option<Spanned<bool>>,
    /// Whether the optimizer steps copies in fp32 of parameters in a narrower type, and writes them back.
    pub master_weights: Option<Spanned<bool>>,
    /// Whether Adam's number of steps is on the device, for a CUDA graph.
    pub capturable: Option<Spanned<bool>>,
    /// Whether the optimizer climbs.
    pub maximize: Option<Spanned<bool>>,
    /// Whether the number of steps is a tensor on the device that the host reads for each parameter.
    pub step_on_device: Option<Spanned<bool>>,
    /// Whether gradients are clipped to a norm.
    pub clip_grad_norm: Option<bool>,
    /// Whether each gradient is multiplied by a number before the step, one parameter after the other.
    pub scale_gradients: Option<bool>,
    /// Whether each parameter is stepped in backward, as soon as its gradient is there.
    pub in_backward: Option<Spanned<bool>>,
}

fill!(Optimizer {
    name, implementation, weight_decay, momentum, nesterov, amsgrad, master_weights, step_on_device, capturable, maximize, in_backward,
} { clip_grad_norm, scale_gradients });

/// `[attention]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Whose kernels.
    pub backend: Option<Spanned<Backend>>,
    /// Whether its backward adds up in one order (`torch.use_deterministic_algorithms`, `FLASH_ATTENTION_DETERMINISTIC`).
    pub deterministic: Option<Spanned<bool>>,
    /// Whether ALiBi's biases are a tensor given to `scaled_dot_product_attention`, or slopes inside the kernel.
    pub alibi_tensor: Option<bool>,
    /// Whether tokens are packed without padding before attention and put back after it (`bert_padding`).
    pub unpad: Option<Spanned<bool>>,
    /// Whether every call first reads an answer back from the device.
    pub reads_back: Option<bool>,
    /// How transformers' classes compute it (`attn_implementation`).
    pub implementation: Option<Spanned<AttentionStyle>>,
}

fill!(Attention { backend, deterministic, unpad, implementation } { alibi_tensor, reads_back });

/// `[memory]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    pub expandable_segments: Option<bool>,
    /// How parameters are initialised, where that leaves blocks in the allocator's cache.
    pub initialisation: Option<Spanned<Initialisation>>,
}

fill!(Memory { initialisation } { expandable_segments });

/// How parameters are initialised.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Initialisation {
    /// In place: nothing is left.
    InPlace,
    /// Linears by `trunc_normal_` of sharded parameters (torchtitan).
    TruncatedNormal,
}

/// `[measured]`: a receipt of the very run that the file describes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Time of a steady step.
    pub step_time: Option<Spanned<Readings<Time>>>,
    /// Or the rate of tokens.
    pub tokens_per_second_per_chip: Option<Spanned<Readings<f64>>>,
    /// Tokens of a step that the rate counts, where padding is left out of it.
    pub counted_tokens_per_step: Option<Spanned<i64>>,
    /// Peak of `memory_allocated`.
    pub allocated: Option<Spanned<Bytes>>,
    /// Peak of `memory_reserved`.
    pub reserved: Option<Spanned<Bytes>>,
    /// A peak that is not said to be either.
    pub peak_memory: Option<Spanned<Bytes>>,
    /// Model FLOPs utilisation, between 0 and 1.
    pub mfu: Option<Spanned<f64>>,
    /// Its convention, by the name that `run --mfu-all` prints.
    pub mfu_convention: Option<Spanned<String>>,
    /// The run ended out of memory.
    pub out_of_memory: Option<bool>,
    /// Who measured it, where it is written down.
    pub source: Option<String>,
    /// The day it was measured on.
    pub date: Option<Spanned<String>>,
    /// The commit of the code that ran.
    pub commit: Option<String>,
    /// The kind of run it is counted with.
    pub lane: Option<String>,
    /// The hardware it is counted under.
    pub hardware: Option<String>,
    /// How complete the receipt is: A, B or C.
    pub grade: Option<String>,
    /// Runs measured together, such as a model by one publisher: its interval rests on other families alone.
    pub family: Option<String>,
}
