//! Sets of frameworks, by the names that scenarios write.

/// Those under which adapters are simulated.
pub(in crate::scenario) const ADAPTERS: &[&str] = &["fsdp2", "fsdp1", "single_device", "megatron"];

/// Every framework.
pub(in crate::scenario) const ALL: &[&str] = &[
    "fsdp2",
    "fsdp1",
    "ddp",
    "single_device",
    "megatron",
    "deepspeed",
    "deepspeed-zero",
    "internevo",
    "nanotron",
    "xla",
    "torch_xla",
];

/// All on GPUs but DeepSpeed's ZeRO and PyTorch's `DistributedDataParallel`.
pub(in crate::scenario) const ALL_BUT_ZERO_AND_XLA: &[&str] =
    &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed", "internevo", "nanotron"];

/// Those of which a file says whether they clip gradients.
pub(in crate::scenario) const CLIPS: &[&str] =
    &["fsdp2", "fsdp1", "ddp", "single_device", "megatron", "deepspeed", "deepspeed-zero"];

/// Those on GPUs.
pub(in crate::scenario) const CUDA: &[&str] =
    &["fsdp2", "fsdp1", "ddp", "single_device", "megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron"];

/// Those on GPUs but PyTorch's `DistributedDataParallel`.
pub(in crate::scenario) const CUDA_BUT_DDP: &[&str] =
    &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron"];

/// PyTorch's `DistributedDataParallel`.
pub(in crate::scenario) const DDP: &[&str] = &["ddp"];

/// Those that shard with PyTorch.
pub(in crate::scenario) const FSDP: &[&str] = &["fsdp2", "fsdp1"];

/// PyTorch's `FullyShardedDataParallel`.
pub(in crate::scenario) const FSDP1: &[&str] = &["fsdp1"];

/// InternEvo.
pub(in crate::scenario) const INTERNEVO: &[&str] = &["internevo"];

/// Those that run Megatron's modules.
pub(in crate::scenario) const MEGATRON: &[&str] = &["megatron", "deepspeed"];

/// Those that run a PyTorch module as it is.
pub(in crate::scenario) const MODULES: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device", "deepspeed-zero"];

/// Those that run a PyTorch module as it is, and XLA: those of which a file says which optimizer steps.
pub(in crate::scenario) const STEPS: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device", "deepspeed-zero", "xla"];

/// Those under which a loss over pairs of sequences is simulated.
pub(in crate::scenario) const PAIRS: &[&str] = &["fsdp2", "single_device"];

/// nanotron.
pub(in crate::scenario) const NANOTRON: &[&str] = &["nanotron"];

/// Those under which packed documents have a mask of their own.
pub(in crate::scenario) const PACKED: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device", "megatron"];

/// PyTorch's own runtimes.
pub(in crate::scenario) const PYTORCH: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device"];

/// PyTorch's own runtimes but `DistributedDataParallel`.
pub(in crate::scenario) const PYTORCH_BUT_DDP: &[&str] = &["fsdp2", "fsdp1", "single_device"];

/// PyTorch's own, and those that run Megatron's modules.
pub(in crate::scenario) const PYTORCH_OR_MEGATRON: &[&str] =
    &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed"];

/// Those whose mesh has one axis of replicas.
pub(in crate::scenario) const REPLICAS: &[&str] = &["megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron"];

/// Those that can split a model into stages.
pub(in crate::scenario) const STAGES: &[&str] =
    &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed", "nanotron"];

/// JAX on XLA.
pub(in crate::scenario) const XLA: &[&str] = &["xla"];

/// PyTorch on XLA.
pub(in crate::scenario) const TORCH_XLA: &[&str] = &["torch_xla"];

/// Both.
pub(in crate::scenario) const COMPILED: &[&str] = &["xla", "torch_xla"];

/// DeepSpeed's ZeRO.
pub(in crate::scenario) const ZERO: &[&str] = &["deepspeed-zero"];

/// All but PyTorch's own runtimes.
pub(in crate::scenario) const OTHERS: &[&str] =
    &["megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron", "xla", "torch_xla"];
