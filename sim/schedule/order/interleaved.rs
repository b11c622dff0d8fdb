//! Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473): 1F1B over several stages a rank, depth first.
//!
//! A rank deals its micro-batches out in rounds: a round goes through the first stage, then through the next, and so on;
//! backwards run through the same table with the stages reversed. With equal stages and m ≥ p the bubble is
//! (p−1)/(v·m+p−1). In flight on rank r: (v−1)·p + 2(p−1−r) + 1, at most v·m.

use super::super::{Action, Batching, Kind, Placement, ScheduleError, Shape};
use super::entry::{Entry, Generate};

/// 1F1B over several stages a rank.
pub const INTERLEAVED: Entry = Entry {
    name: "Interleaved1F1B",
    about: "1F1B over several stages a rank, depth first: a smaller bubble for more communication",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: |shape| rounds("Interleaved1F1B", shape).map(|_| ()),
    generate: Generate::Rank(|shape, rank, out| {
        let round = shape.microbatches / (shape.microbatches / shape.ranks).max(1);
        let warmup = (shape.virtual_stages - 1) * round + 2 * (shape.ranks - 1 - rank);
        write(shape, rank, Plan { round, warmup, weights_after: None }, out);
    }),
};

/// Micro-batches in a round, as PyTorch chooses them: as many rounds as ranks fit into micro-batches.
pub(super) fn rounds(schedule: &'static str, shape: Shape) -> Result<u32, ScheduleError> {
    let rounds = (shape.microbatches / shape.ranks).max(1);
    let left = shape.microbatches % rounds;
    if left == 0 {
        return Ok(shape.microbatches / rounds);
    }
    let (below, above) = (shape.microbatches - shape.microbatches % shape.ranks, shape.ranks);
    let remedy = format!("take a multiple of the {above} pipeline ranks, such as {below} or {}", below + above);
    Err(ScheduleError::Rounds { schedule, found: shape.microbatches, rounds, remedy })
}

/// What the interleaved schedules differ in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Micro-batches that go through a stage before the rank turns to its next one.
    pub round: u32,
    /// Forwards before the first backward, if there are as many.
    pub warmup: u32,
    /// Whether backwards come in halves, and how many of the first halves before the first of the second.
    pub weights_after: Option<u32>,
}

/// One rank's list.
pub(super) fn write(shape: Shape, rank: u32, plan: Plan, out: &mut Vec<Action>) {
    let total = shape.virtual_stages * shape.microbatches;
    let warmup = plan.warmup.min(total);
    let backward = if plan.weights_after.is_some() { Kind::Input } else { Kind::Backward };
    let at = |kind: Kind, turn: u32| {
        let (chunk, microbatch) = dealt(shape, plan.round, turn);
        let chunk = if kind == Kind::Forward { chunk } else { shape.virtual_stages - 1 - chunk };
        Action::new(shape.stage(Placement::Loop, rank, chunk), kind, microbatch)
    };
    out.extend((0..warmup).map(|turn| at(Kind::Forward, turn)));
    for turn in 0..total {
        if warmup + turn < total {
            out.push(at(Kind::Forward, warmup + turn));
        }
        out.push(at(backward, turn));
        if let Some(after) = plan.weights_after.filter(|&after| turn >= after) {
            out.push(at(Kind::Weight, turn - after));
        }
    }
    if let Some(after) = plan.weights_after {
        out.extend((total.saturating_sub(after)..total).map(|turn| at(Kind::Weight, turn)));
    }
}

/// The chunk and the micro-batch of a rank's `turn`th forward. The last round may be shorter.
fn dealt(shape: Shape, round: u32, turn: u32) -> (u32, u32) {
    let first = turn / (shape.virtual_stages * round) * round;
    let size = round.min(shape.microbatches - first);
    let within = turn - first * shape.virtual_stages;
    (within / size, first + within % size)
}
