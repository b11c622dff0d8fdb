//! Settings of the optimizer.

use crate::program::DType;

/// The optimizer: Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Optimizer {
    /// `--use-distributed-optimizer`: each data-parallel rank keeps and steps a part.
    pub distributed: bool,
    /// `--overlap-param-gather`: parameters are gathered bucket by bucket in the next forward.
    pub overlap_gather: bool,
    /// `--align-param-gather`: with virtual stages, all pipeline ranks start gathering a chunk's parameters together,
    /// ahead of its first micro-batch, instead of each at its own.
    pub align_gather: bool,
    /// Type of the master parameters, and of each moment (`--use-precision-aware-optimizer`, `--main-params-dtype`,
    /// `--exp-avg-dtype`, `--exp-avg-sq-dtype`).
    pub master: DType,
    /// `store_param_remainders` (Transformer Engine 2.1 on): of a master in fp32 only the lower 16 bits are kept, the upper
    /// ones being the bf16 parameter, which the step itself writes.
    pub remainders: bool,
    /// First moments.
    pub first_moment: DType,
    /// Second moments.
    pub second_moment: DType,
    /// Whether one multi-tensor kernel steps all parameters (Apex's or Transformer Engine's `FusedAdam`).
    pub fused: bool,
    /// `--clip-grad` above 0.
    pub clip: bool,
}

impl Optimizer {
    /// What is kept of each master parameter \[B\].
    pub fn master_bytes(&self) -> u64 {
        if self.remainders { 2 } else { self.master.bytes() }
    }
}
