//! Names of runtimes, as scenarios write them: what a reader asks which runtime it reads for.

/// PyTorch's `fully_shard`.
pub(super) const FSDP2: &str = "fsdp2";

/// PyTorch's `FullyShardedDataParallel`.
pub(super) const FSDP1: &str = "fsdp1";

/// PyTorch's `DistributedDataParallel`.
pub(super) const DDP: &str = "ddp";

/// PyTorch on one device.
pub(super) const SINGLE_DEVICE: &str = "single_device";

/// Megatron-Core.
pub(super) const MEGATRON: &str = "megatron";

/// Megatron's modules in DeepSpeed's pipeline engine.
pub(super) const DEEPSPEED: &str = "deepspeed";

/// DeepSpeed's ZeRO around a PyTorch module.
pub(super) const DEEPSPEED_ZERO: &str = "deepspeed-zero";

/// InternEvo.
pub(super) const INTERNEVO: &str = "internevo";

/// nanotron.
pub(super) const NANOTRON: &str = "nanotron";

/// XLA on TPUs.
pub(super) const XLA: &str = "xla";

/// PyTorch on XLA.
pub(super) const TORCH_XLA: &str = "torch_xla";
