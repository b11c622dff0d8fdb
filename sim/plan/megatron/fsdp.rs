//! Settings of Megatron-FSDP.

/// What replicas share of a model's parameters (`--data-parallel-sharding-strategy`), each more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Strategy {
    /// `no_shard`: nothing.
    Whole,
    /// `optim`: what the optimizer keeps.
    Optimizer,
    /// `optim_grads`: that, and main gradients.
    Gradients,
    /// `optim_grads_params`: that, and parameters.
    Parameters,
}

/// Megatron-FSDP (`--use-megatron-fsdp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Fsdp {
    /// What is shared.
    pub strategy: Strategy,
    /// `--suggested-communication-unit-size`: elements of gradients that wait; half as many of parameters are gathered ahead.
    pub unit_size: u64,
    /// `--fsdp-double-buffer`.
    pub double_buffer: bool,
    /// `--create-all-gather-group`: parameters are gathered on a communicator of their own.
    pub gather_group: bool,
}
