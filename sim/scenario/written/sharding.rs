//! The tables `[fsdp]`, `[fsdp1]` and `[ddp]` as written.

use serde::Deserialize;
use toml::Spanned;

/// `reshard_after_forward`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected true, false, or a number of ranks")]
pub enum Reshard {
    /// Always or never.
    Flag(bool),
    /// On this many ranks.
    Ranks(i64),
}

/// `set_reshard_after_backward`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected true, or \"last_micro_batch\"")]
pub enum ReshardAfterBackward {
    /// After every backward, or never.
    Flag(bool),
    /// When a word says.
    At(ReshardMoment),
}

/// When parameters are resharded after a backward.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum ReshardMoment {
    /// After that of a step's last micro-batch.
    LastMicroBatch,
}

/// Which blocks are wrapped.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Wrap {
    /// Only the whole model.
    Root,
    /// Each block, and the root.
    Block,
    /// torchtitan: each block, the embedding, final norm and head together, and the root.
    Torchtitan,
    /// llm-foundry: each block, token table, position table and final norm each, and an empty root.
    LlmFoundry,
    /// One block in so many, starting with the first, and the root.
    Every(i64),
    /// These blocks, and the root.
    Blocks(Vec<i64>),
    /// So many consecutive blocks together, and the root.
    Together(i64),
    /// These blocks, a list of them together, and the root.
    Lists(Vec<Unit>),
    /// These modules of every block (`"block"`: the block itself), and the root.
    Modules(Vec<Spanned<String>>),
}

/// A unit among several.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected a block, or a list of blocks")]
pub enum Unit {
    /// One block.
    One(i64),
    /// Blocks that share a group.
    Together(Vec<i64>),
}

/// `[[fsdp.override]]`: another policy for some blocks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// First block, and the one after the last.
    pub blocks: Spanned<(i64, i64)>,
    /// Their policy.
    pub reshard_after_forward: Spanned<Reshard>,
}

/// `[fsdp]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Fsdp {
    /// Wrapping.
    pub wrap: Option<Spanned<Wrap>>,
    /// For wrapped blocks.
    pub reshard_after_forward: Option<Spanned<Reshard>>,
    /// Modules at the model's ends that are units of their own.
    pub ends: Option<Spanned<Vec<Spanned<String>>>>,
    /// For the head, where it is a unit.
    pub head_reshard_after_forward: Option<Spanned<Reshard>>,
    /// For the root.
    pub root_reshard_after_forward: Option<Spanned<Reshard>>,
    /// After a backward.
    pub reshard_after_backward: Option<Spanned<ReshardAfterBackward>>,
    /// For some blocks.
    #[serde(default, rename = "override")]
    pub overrides: Vec<Override>,
    /// Blocks each block prefetches explicitly in forward.
    pub forward_prefetch: Option<Spanned<i64>>,
    /// Blocks each block prefetches explicitly in backward.
    pub backward_prefetch: Option<Spanned<i64>>,
    /// Parameters that are sharded on their second dimension, by the ends of their names (`shard_placement_fn`).
    pub shard_dim_1: Option<Spanned<Vec<String>>>,
    /// Reduce-scatter inputs in flight.
    pub reduce_scatter_buffers: Option<Spanned<i64>>,
    /// `set_unshard_in_backward`.
    pub unshard_in_backward: Option<bool>,
    /// `CPUOffloadPolicy`.
    pub cpu_offload: Option<bool>,
}

fill!(Fsdp {
    wrap, ends, head_reshard_after_forward, reshard_after_forward, root_reshard_after_forward, reshard_after_backward, forward_prefetch, backward_prefetch,
    reduce_scatter_buffers, shard_dim_1,
} { unshard_in_backward, cpu_offload } { overrides });

/// `[fsdp1]`: what only `FullyShardedDataParallel` has.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fsdp1 {
    /// `use_orig_params`.
    pub use_orig_params: Option<bool>,
    /// `backward_prefetch`.
    pub backward_prefetch: Option<BackwardPrefetch>,
    /// `limit_all_gathers`.
    pub limit_all_gathers: Option<bool>,
    /// Whether gradients are padded, and so copied, even by nothing (PyTorch 1.13).
    pub always_pads: Option<bool>,
}

/// `BackwardPrefetch`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum BackwardPrefetch {
    /// `BACKWARD_PRE`.
    Pre,
    /// `BACKWARD_POST`.
    Post,
    /// Neither.
    None,
}

/// `[ddp]`: arguments of `DistributedDataParallel`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ddp {
    /// `bucket_cap_mb`.
    pub bucket_cap_mb: Option<Spanned<i64>>,
    /// `gradient_as_bucket_view`.
    pub gradient_as_bucket_view: Option<bool>,
    /// `static_graph`.
    pub static_graph: Option<bool>,
    /// `find_unused_parameters`.
    pub find_unused_parameters: Option<bool>,
    /// `broadcast_buffers`.
    pub broadcast_buffers: Option<bool>,
    /// `batched_grad_copy`.
    pub batched_grad_copy: Option<bool>,
    /// `lazy_bucket_allocation`.
    pub lazy_bucket_allocation: Option<bool>,
    /// `register_comm_hook`.
    pub comm_hook: Option<CommHook>,
}

/// Hooks of `torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum CommHook {
    /// `bf16_compress_hook`.
    Bf16CompressHook,
    /// `fp16_compress_hook`.
    Fp16CompressHook,
}
