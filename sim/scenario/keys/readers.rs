//! Sets of frameworks, by the names that scenarios write.

/// Those under which adapters are simulated.
pub(super) const ADAPTERS: &[&str] = &["fsdp2", "fsdp1", "single_device", "megatron"];

/// Every framework.
pub(super) const ALL: &[&str] = &[
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
pub(super) const ALL_BUT_ZERO_AND_XLA: &[&str] =
    &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed", "internevo", "nanotron"];

/// Those of which a file says whether they clip gradients.
pub(super) const CLIPS: &[&str] =
    &["fsdp2", "fsdp1", "ddp", "single_device", "megatron", "deepspeed", "deepspeed-zero"];

/// Those on GPUs.
pub(super) const CUDA: &[&str] =
    &["fsdp2", "fsdp1", "ddp", "single_device", "megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron"];

/// Those on GPUs but PyTorch's `DistributedDataParallel`.
pub(super) const CUDA_BUT_DDP: &[&str] =
    &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron"];

/// PyTorch's `DistributedDataParallel`.
pub(super) const DDP: &[&str] = &["ddp"];

/// Those that shard with PyTorch.
pub(super) const FSDP: &[&str] = &["fsdp2", "fsdp1"];

/// PyTorch's `FullyShardedDataParallel`.
pub(super) const FSDP1: &[&str] = &["fsdp1"];

/// InternEvo.
pub(super) const INTERNEVO: &[&str] = &["internevo"];

/// Those that run Megatron's modules.
pub(super) const MEGATRON: &[&str] = &["megatron", "deepspeed"];

/// Those that run a PyTorch module as it is.
pub(super) const MODULES: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device", "deepspeed-zero"];

/// Those that run a PyTorch module as it is, and XLA: those of which a file says which optimizer steps.
pub(super) const STEPS: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device", "deepspeed-zero", "xla"];

/// Those under which a loss over pairs of sequences is simulated.
pub(super) const PAIRS: &[&str] = &["fsdp2", "single_device"];

/// nanotron.
pub(super) const NANOTRON: &[&str] = &["nanotron"];

/// Those under which packed documents have a mask of their own.
pub(super) const PACKED: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device", "megatron"];

/// PyTorch's own runtimes.
pub(super) const PYTORCH: &[&str] = &["fsdp2", "fsdp1", "ddp", "single_device"];

/// PyTorch's own runtimes but `DistributedDataParallel`.
pub(super) const PYTORCH_BUT_DDP: &[&str] = &["fsdp2", "fsdp1", "single_device"];

/// PyTorch's own, and those that run Megatron's modules.
pub(super) const PYTORCH_OR_MEGATRON: &[&str] = &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed"];

/// Those whose mesh has one axis of replicas.
pub(super) const REPLICAS: &[&str] = &["megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron"];

/// Those that can split a model into stages.
pub(super) const STAGES: &[&str] = &["fsdp2", "fsdp1", "single_device", "megatron", "deepspeed", "nanotron"];

/// JAX on XLA.
pub(super) const XLA: &[&str] = &["xla"];

/// PyTorch on XLA.
pub(super) const TORCH_XLA: &[&str] = &["torch_xla"];

/// Both.
pub(super) const COMPILED: &[&str] = &["xla", "torch_xla"];

/// DeepSpeed's ZeRO.
pub(super) const ZERO: &[&str] = &["deepspeed-zero"];

/// All but PyTorch's own runtimes.
pub(super) const OTHERS: &[&str] =
    &["megatron", "deepspeed", "deepspeed-zero", "internevo", "nanotron", "xla", "torch_xla"];
