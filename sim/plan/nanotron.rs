//! A job under nanotron.

use super::megatron::Split;

/// A training job, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct NanotronPlan {
    /// The model, and how it is split.
    pub split: Split,
    /// `optimizer.zero_stage` is 1: each replica steps a slice of every parameter.
    pub zero: bool,
    /// `ddp_bucket_cap_mb`, of gradients in the parameters' type \[B\].
    pub bucket: u64,
    /// `tp_recompute_allgather`: inputs are gathered again in backward.
    pub gathers_again: bool,
}

impl NanotronPlan {
    /// Whether `DistributedDataParallel` is around the model.
    pub fn is_ddp(&self) -> bool {
        !self.zero && self.split.mesh.dp > 1
    }
}
