//! What a user of `DistributedDataParallel` sets.

use crate::program::DType;

/// Settings of `torch.nn.parallel.DistributedDataParallel`, each under the argument's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Ddp {
    /// What fills a bucket \[B\].
    pub bucket_cap: u64,
    /// What fills the first bucket \[B\].
    pub first_bucket: u64,
    /// Whether gradients are views of the buckets, or are copied into them and back.
    pub gradient_as_bucket_view: bool,
    /// Whether the graph of every step is the first one's.
    pub static_graph: bool,
    /// Whether every forward looks for parameters that it has not used.
    pub find_unused_parameters: bool,
    /// Whether a forward begins with the first rank's buffers.
    pub broadcast_buffers: bool,
    /// Whether a bucket's gradients are copied together once it is full.
    pub batched_grad_copy: bool,
    /// Whether a bucket is allocated when its first gradient comes, and goes after backward.
    pub lazy_bucket_allocation: bool,
    /// The type that a hook casts buckets to before they are reduced (`bf16_compress_hook`), if there is one.
    pub compressed: Option<DType>,
}

impl Ddp {
    /// `bucket_cap_mb=None` \[MiB\] (`torch/nn/parallel/distributed.py`, `_DEFAULT_BUCKET_CAP_MB`, PyTorch 2.15).
    pub const DEFAULT_CAP: u64 = 25;

    /// What fills the first bucket where `bucket_cap_mb` is left out \[B\] (`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`).
    pub const FIRST_BUCKET: u64 = 1 << 20;

    /// Whether every step looks for unused parameters: a static graph has looked once.
    pub fn searches(&self) -> bool {
        self.find_unused_parameters && !self.static_graph
    }
}
