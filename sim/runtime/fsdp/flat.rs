//! FSDP1 (`FullyShardedDataParallel`), as `torch/distributed/fsdp/_runtime_utils.py` and `_flat_param.py` run it.
//!
//! Each wrapped module's parameters are views into one *flat parameter*, sharded by even cuts across parameter borders.
//! Before forward its shard is cast on one stream and gathered on another, straight into the storage the views read: no
//! copy-out, so no buffer besides the parameters themselves. In backward autograd concatenates the views' gradients
//! into one flat gradient (the unit's gradients exist twice for a moment), which is cast, padded and reduce-scattered
//! on a third stream. Autograd runs a node on the stream its forward ran on, and the views are made on the gathers'
//! stream: so the flat gradient comes from that stream's pool, and the hook that follows it runs there. The host never
//! issues more than two gathers whose memory is still in use: the *rate limiter*
//! blocks it on the event recorded when an earlier unit was freed (`_limiter_utils.py`).
//!
//! The sharding strategy is read off the other settings: blocks that reshard `Always` are `FULL_SHARD`, `Never`
//! `SHARD_GRAD_OP`, the same over several replicas `HYBRID_SHARD` and `_HYBRID_SHARD_ZERO2`, and one shard `NO_SHARD`.
//! The root states the strategy too, but never frees after forward.
//!
//! Order and sizes are held against PyTorch's own allocator in `tests/oracles/fsdp1.json`. What is neglected:
//! - `record_stream`. FSDP1 frees blocks that another stream may still read; PyTorch hands such a block out again only
//!   once that stream has passed the free. Here a free is a free at once. *Allocated* is right all the same; on a
//!   device whose host runs far ahead *reserved* may be higher, by as many gathered units, flat gradients and
//!   reduce-scatter inputs as are in flight (what the rate limiter bounds for gathers, and nothing for gradients).
//! - Ranks differ: with original parameters the optimizer's tensors are the views that fall into a rank's cut. This is
//!   rank 0, which holds no padding at the end.
//! - `FSDP.clip_grad_norm_` runs one norm per tensor; the clip of [`crate::runtime::optimizer`] is multi-tensor.
//! - Final norm and head, where wrapped on their own, count as one module.
//! - The limiter's queue takes two steps to settle where forward is prefetched; the program has one step of each kind.
//! - Construction, `summon_full_params` and full-precision evaluation.
//!
//! [`handle`] holds a flat parameter, [`unshard`] gathers and frees it, [`reduce`] follows its gradient, [`hooks`] is
//! the order in which a training step calls them.

mod handle;
mod hooks;
mod reduce;
mod unshard;

use std::collections::VecDeque;

use super::group::Group;
use crate::plan::torch::fsdp::{Fsdp, One, Version};
use crate::program::{EventId, StreamId};
use handle::Handle;

/// The stream on which shards are cast, or copied from the host, before they are gathered.
const PRE_UNSHARD: StreamId = StreamId(1);
/// The stream of all-gathers and of autograd's flat gradients; its pool holds both.
const UNSHARD: StreamId = StreamId(2);
/// The stream of gradient casts and reduce-scatters.
const POST_BACKWARD: StreamId = StreamId(3);
/// The stream of hybrid sharding's all-reduces.
const ALL_REDUCE: StreamId = StreamId(4);

/// Names of the streams above, in order, after the default stream.
pub const STREAMS: [&str; 5] = ["default", "pre-unshard", "unshard", "post-backward", "all-reduce"];

/// Freed units the host may run ahead of before it waits (`_max_num_inflight_all_gathers`).
const IN_FLIGHT: usize = 2;

/// What the flat parameters of a run share.
#[derive(Debug)]
pub(super) struct State {
    settings: One,
    handles: Vec<Handle>,
    /// Events of freed units that the rate limiter has not waited for.
    free_events: VecDeque<EventId>,
    /// Units in the order of their first forwards.
    pre_forward_order: Vec<usize>,
    /// Units in the order their forwards ended in this pass.
    post_forward_order: Vec<usize>,
    /// The unit whose gradients autograd concatenates only after the unit before it has run backward.
    late: Option<usize>,
    /// Whether the first forward has made and freed every storage once (`_lazy_init`).
    initialised: bool,
    /// Whether no backward has ended yet: the order of forwards is still being learnt.
    first_pass: bool,
    /// Whether a step has ended since the last forward.
    new_step: bool,
}

impl State {
    /// Flat parameters of all groups; none with FSDP2.
    pub(super) fn new(config: &Fsdp, groups: &[Group]) -> Self {
        let (settings, groups) = match config.version {
            Version::One(settings) => (settings, groups),
            Version::Two | Version::Unsharded => (One::default(), &[][..]),
        };
        State {
            settings,
            handles: groups.iter().map(|group| Handle::new(group, config, settings)).collect(),
            free_events: VecDeque::new(),
            pre_forward_order: vec![],
            post_forward_order: vec![],
            late: None,
            initialised: false,
            first_pass: true,
            new_step: false,
        }
    }
}
