//! 1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503): as GPipe, but a backward as soon as there is one.
//!
//! The bubble stays (p−1)/(m+p−1); at most p−r micro-batches are in flight on rank r. PyTorch's own printed order
//! (`Schedule1F1B._get_pipeline_order`) is off by one on the last rank; this is the order that its loop executes.

use super::super::{Action, Batching, Kind, Placement, ScheduleError, Shape};
use super::entry::{Entry, Generate, one_stage};

/// One forward, one backward, after a warm-up as long as the way to the last rank.
pub const ONE_FORWARD_ONE_BACKWARD: Entry = Entry {
    name: "1F1B",
    about: "one forward, one backward: GPipe's time with at most as many micro-batches in flight as ranks",
    placement: Placement::Loop,
    batching: |_| Batching::Paired,
    check,
    generate: Generate::Rank(write),
};

fn check(shape: Shape) -> Result<(), ScheduleError> {
    one_stage("1F1B", shape)?;
    if shape.microbatches >= shape.ranks {
        return Ok(());
    }
    Err(ScheduleError::FewMicrobatches {
        schedule: "1F1B",
        least: shape.ranks,
        why: "one for each rank, in PyTorch",
        found: shape.microbatches,
        remedy: "take smaller micro-batches, or Megatron1F1B, which does without",
    })
}

/// One rank's list.
pub(super) fn write(shape: Shape, rank: u32, out: &mut Vec<Action>) {
    let stage = shape.stage(Placement::Loop, rank, 0);
    let warmup = shape.microbatches.min(shape.ranks - 1 - rank);
    out.extend((0..warmup).map(|microbatch| Action::new(stage, Kind::Forward, microbatch)));
    for backward in 0..shape.microbatches {
        let forward = warmup + backward;
        if forward < shape.microbatches {
            out.push(Action::new(stage, Kind::Forward, forward));
        }
        out.push(Action::new(stage, Kind::Backward, backward));
    }
}
