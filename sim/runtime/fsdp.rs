//! PyTorch FSDP2 (`fully_shard`), as `torch/distributed/fsdp/_fully_shard/` runs it.
//!
//! Each wrapped module is a parameter group. Before its forward the group all-gathers its parameters on its own streams
//! and copies them out; after forward it frees them (or keeps them, or keeps a part); before its backward it gathers
//! again and prefetches the group before it; after backward it packs its gradients and reduce-scatters them. The order
//! of allocations and frees below is that of `_fsdp_param_group.py` and `_fsdp_collectives.py` (PyTorch 2.15), and is
//! held against traces of PyTorch's own allocator in `tests/oracles`.
//!
//! [`config`] says what can be set; [`group`] holds a group's state; [`unshard`] and [`reduce`] are the two collectives
//! with everything around them; [`hooks`] is the order in which a training step calls them. [`flat`] is FSDP1, the
//! predecessor, behind the same hooks: [`Version`] chooses.

pub mod config;
pub mod flat;
pub(super) mod float8;
pub mod group;
pub mod hooks;
mod reduce;
mod unshard;

pub use crate::plan::torch::fsdp::{
    BackwardPrefetch, Fsdp, Inner, MixedPrecision, One, Reshard, Unsupported, Version, Wrap, names_parameter,
};
pub use group::{Group, Narrow, Place, ShardedParam};

use crate::program::{BufferId, EventId, GroupId, StreamId};

/// The stream on which shards are cast and packed for an all-gather; its allocator pool holds all-gather buffers.
pub const COPY_IN: StreamId = StreamId(1);
/// The stream of all-gathers.
pub const ALL_GATHER: StreamId = StreamId(2);
/// The stream of reduce-scatters; its pool holds the sharded gradients.
pub const REDUCE_SCATTER: StreamId = StreamId(3);
/// The stream of HSDP's all-reduces.
pub const ALL_REDUCE: StreamId = StreamId(4);

/// How many of these streams each root has for itself; those of a second root follow the first's.
pub const OF_EACH_ROOT: usize = 4;

/// The stream of activations on their way to the host and back, where they have one.
pub const OFFLOAD: StreamId = StreamId(5);

/// Names of the streams above, in order, after the default stream.
pub const STREAMS: [&str; 6] =
    ["default", "all-gather copy-in", "all-gather", "reduce-scatter", "all-reduce", "activation offload"];

impl Fsdp {
    /// Names of the run's streams; the first is the default stream.
    pub fn streams(&self) -> &'static [&'static str] {
        match self.version {
            Version::One(_) => &flat::STREAMS,
            Version::Two => &STREAMS[..5],
            Version::Unsharded => &STREAMS[..1],
        }
    }
}

/// State that all parameter groups share (`FSDPCommContext`).
#[derive(Debug, Default)]
pub struct Context {
    /// The last all-gather output in forward, kept until the next copy-out, and the copy-out's event.
    all_gather_state: Option<(Option<BufferId>, EventId)>,
    /// Packed gradients of reduce-scatters in flight.
    reduce_scatter_states: Vec<(BufferId, EventId)>,
    /// Groups in the order their forwards ended.
    post_forward_order: Vec<usize>,
    /// Last event after a reduction, per stream (reduce-scatter, all-reduce).
    last_post_reduce: [Option<EventId>; 2],
}

/// Communicators of a sharded run.
#[derive(Clone, Copy, Debug)]
pub struct Communicators {
    /// Of all ranks, where the loop reads numbers back.
    pub world: GroupId,
    /// Over which parameters are sharded.
    pub shard: GroupId,
    /// Over which they are replicated (HSDP).
    pub replicate: Option<GroupId>,
    /// Over which they stay sharded between forward and backward (`reshard_after_forward = N`).
    pub post_forward: Option<GroupId>,
}
