//! `DistributedDataParallel` (PyTorch 2.15), as `torch/nn/parallel/distributed.py` and `torch/csrc/distributed/c10d/reducer.cpp` run it.
//!
//! Every rank has the whole model. Gradients lie in *buckets*, which are all-reduced on a stream of their own while backward goes on:
//!
//! ```text
//! a leaf has taken a gradient ─► copied into its bucket, divided by the ranks ─► the bucket is full, and all before it are
//!   ─► all-reduce ─► … end of backward: the default stream waits for each bucket, and gradients are copied back
//! ```
//!
//! With `gradient_as_bucket_view` the gradient itself then is a part of the bucket: what autograd made of it goes, and nothing is copied
//! back. After `zero_grad()` autograd makes it anew, so it is copied in all the same.
//!
//! The first backward has a single bucket of everything, and learns the order in which gradients come. Before the next forward buckets are
//! made anew in that order. A reducer that searches for unused parameters keeps the buckets it begins with, which follow the order of
//! registration from its end; it copies the model's results, and reduces a map of parameters that were used.
//!
//! The model's buffers are broadcast before a forward whose predecessor has reduced gradients. Construction broadcasts parameters and
//! buffers in pieces of 250 MiB, which leave their blocks in the allocator's cache.
//!
//! What is neglected: the host's time for its search through autograd's graph and for reading timers (every tenth step at first, later every
//! hundredth); what `record_stream` holds back of a compressed bucket.
//!
//! [`assignment`] says what is in a bucket; [`reducer`] fills and reduces them; [`broadcast`] has the buffers.

mod assignment;
mod broadcast;
mod reducer;

pub(super) use broadcast::{Buffers, Ranks};
pub(super) use reducer::{Hooks, Reducer};

use super::Refusal;
use crate::plan::eager::Offload;
use crate::plan::torch::TorchPlan;
use crate::plan::torch::ddp::Ddp;
use crate::program::StreamId;

/// The stream of all-reduces and broadcasts.
const REDUCE: StreamId = StreamId(1);
/// The stream on which what a hook has compressed is written back.
const DECOMPRESS: StreamId = StreamId(2);

/// Names of a run's streams.
pub(super) fn streams(settings: &Ddp) -> &'static [&'static str] {
    if settings.compressed.is_some() { &["default", "all-reduce", "comm hook"] } else { &["default", "all-reduce"] }
}

/// The first thing in a job that has no rules under `DistributedDataParallel`.
pub(super) fn refuses(job: &TorchPlan, settings: &Ddp) -> Option<Refusal> {
    let searches = settings.searches();
    Refusal::first([
        (
            settings.static_graph && job.accumulation > 1 && !job.sync_every,
            Refusal::new(
                "ddp-static-no-sync",
                "static_graph=True with no_sync in the first step, with which PyTorch stops (expect_autograd_hooks_)",
            )
            .on("ddp.static_graph"),
        ),
        (
            searches && job.reentrant,
            Refusal::new(
                "ddp-unused-reentrant",
                "find_unused_parameters=True with reentrant checkpoints, with which PyTorch stops",
            )
            .on("ddp.find_unused_parameters"),
        ),
        (
            searches && (job.loss_inside || !job.loss.sees_whole_logits()),
            Refusal::new(
                "ddp-unused-loss",
                "find_unused_parameters=True, which copies what the model returns, with a model that returns other than logits",
            )
            .on("ddp.find_unused_parameters"),
        ),
        (
            job.reentrant && job.trained.is_some(),
            Refusal::new(
                "ddp-reentrant-frozen",
                "reentrant checkpoints of a model in part frozen under DistributedDataParallel",
            )
            .on("activation_checkpointing.use_reentrant"),
        ),
        (
            matches!(job.eager.offload, Some(Offload::OwnStream(_))),
            Refusal::new("ddp-offload-stream", "activations on a stream to the host beside DistributedDataParallel's own")
                .on("activation_checkpointing.offload"),
        ),
    ])
}
