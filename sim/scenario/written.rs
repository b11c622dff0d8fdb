//! The file as written: serde's view, nothing decided. Unknown keys are errors.

pub use super::keys::attention::Attention;
pub use super::keys::batch::Batch;
pub use super::keys::checkpointing::{Checkpointing, Layers, OffloadStream, Policy};
pub use super::keys::compile::Compile;
pub use super::keys::documents::{DocumentLength, Documents, Lognormal, Packing};
pub use super::keys::dpo::{Dpo, PreferenceCode, Reference};
pub use super::keys::experts::{ExpertLoad, ExpertStyle};
pub use super::keys::failures::{Checkpoint, Every, Failures, Spares};
pub use super::keys::float8::{Float8, LinearStyle, Recipe as Float8Recipe};
pub use super::keys::framework::{AttentionStyle, Framework, LoadBalancer, ModulesStyle, RopeStyle};
pub use super::keys::internevo::InternEvo;
pub use super::keys::loss::{KeepLogits, Loss, LossKind, Until};
pub use super::keys::measured::Measured;
pub use super::keys::megatron::{
    CoreVersion, FlexBackend, Fp8, FusedLoss, Graphs, Implementation as Modules, LayerNorm, Megatron, Module, Pipeline,
    Recompute, Scope, Scores, Strategy, TensorScatter, Waited,
};
pub use super::keys::memory::{Initialisation, Memory};
pub use super::keys::mesh::{Mesh, TensorParallel};
pub use super::keys::model::Model;
pub use super::keys::nanotron::{Engine, Nanotron, TensorMode};
pub use super::keys::optimizer::{Loop, Optimizer};
pub use super::keys::precision::Precision;
pub use super::keys::ranks::{Ranks, Slow, SlowRank};
pub use super::keys::readings::{Quantiles, Readings};
pub use super::keys::sharding::{
    BackwardPrefetch, CommHook, Ddp, Fsdp, Fsdp1, Override, Reshard, ReshardAfterBackward, ReshardMoment, Unit, Wrap,
};
pub use super::keys::topology::{Clocks, Topology};
pub use super::keys::torch_xla::{TorchAttention, TorchPrecision, TorchXla};
pub use super::keys::trained::{BaseWeights, Lora, LoraCode, Part, Trained};
pub use super::keys::xla::{Eight, ExpertExchange, Moment, Xla, XlaAttention};
pub use super::keys::zero::{Aio, Device as ZeroDevice, OffloadOptimizer, OffloadParam, Zero};

use serde::Deserialize;
use toml::Spanned;

use super::keys::readers::ALL;

keys! {
    /// The keys at the top of the file.
    #[derive(Debug, Deserialize)]
    [""] Scenario in Sharding;

    /// What the run is, for reports.
    description: Option<String> => ALL.such_as("\"Llama-3.1-8B on one node\"");
    /// The framework: `fsdp2`, `megatron`, ….
    runtime: Spanned<String> => ALL.such_as("\"fsdp2\"");

    tables {
        /// The machine.
        topology: Topology;
        /// The model.
        model: Spanned<Model>;
        /// Mesh axes.
        mesh: Spanned<Mesh>;
        /// Batch and sequence.
        batch: Batch;
        /// How modules are split over `mesh.tp`.
        tensor_parallel: Option<Spanned<TensorParallel>>;
        /// The pipeline over `mesh.pp`.
        pipeline: Option<Spanned<Pipeline>>;
        /// What only Megatron-Core has.
        megatron: Option<Spanned<Megatron>>;
        /// What only InternEvo has.
        internevo: Option<Spanned<InternEvo>>;
        /// What only nanotron has.
        nanotron: Option<Spanned<Nanotron>>;
        /// What XLA has.
        xla: Option<Spanned<Xla>>;
        /// What only PyTorch/XLA has.
        torch_xla: Option<Spanned<TorchXla>>;
        /// What only DeepSpeed's ZeRO has.
        zero: Option<Spanned<Zero>>;
        /// Types.
        #[serde(default)]
        precision: Precision;
        /// `fully_shard`.
        #[serde(default)]
        fsdp: Fsdp;
        /// `FullyShardedDataParallel`.
        #[serde(default)]
        fsdp1: Option<Spanned<Fsdp1>>;
        /// `DistributedDataParallel`.
        ddp: Option<Spanned<Ddp>>;
        /// `torch.compile`.
        #[serde(default)]
        compile: Compile;
        /// torchao's float8 linears.
        float8: Option<Spanned<Float8>>;
        /// Which parts of the model are trained.
        trained: Option<Spanned<Trained>>;
        /// Adapters beside frozen weights.
        lora: Option<Spanned<Lora>>;
        /// Direct preference optimization.
        dpo: Option<Spanned<Dpo>>;
        /// The loss.
        #[serde(default)]
        loss: Loss;
        /// What the training loop does besides.
        #[serde(default, rename = "loop")]
        training_loop: Loop;
        /// What differs between PyTorch's versions.
        #[serde(default)]
        framework: Framework;
        /// Activation checkpointing.
        #[serde(default)]
        activation_checkpointing: Checkpointing;
        /// Optimizer.
        #[serde(default)]
        optimizer: Optimizer;
        /// Attention kernels.
        #[serde(default)]
        attention: Attention;
        /// Allocator.
        #[serde(default)]
        memory: Memory;
        /// How ranks differ from one another.
        ranks: Option<Spanned<Ranks>>;
        /// What interrupts the training, and what it takes to go on.
        #[serde(default)]
        failures: Failures;
        /// How checkpoints are saved.
        #[serde(default)]
        checkpoint: Checkpoint;
        /// What the run measured, where it has been run.
        measured: Option<Spanned<Measured>>;
    }
}
