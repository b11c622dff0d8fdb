//! A job under InternEvo.

use super::megatron::Split;
use crate::program::Group;

/// A training job, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct InternEvoPlan {
    /// The model, and how it is split.
    pub split: Split,
    /// `parallel.zero1`: replicas over which optimizer states are spread.
    pub zero1: u32,
    /// `hybrid_zero_optimizer.reduce_bucket_size`: elements of a bucket, at most.
    pub bucket: u64,
}

impl InternEvoPlan {
    /// The ranks over which optimizer states are spread.
    pub fn owners(&self) -> Group {
        Group::new("zero1", self.zero1, self.split.mesh.tp)
    }
}
