//! DualPipeV: DualPipe (DeepSeek-V3, arXiv 2412.19437) cut in half, with stages there and back.
//!
//! In the middle of the step a rank always runs a forward of one of its stages beside a backward of the other, so that
//! one's communication hides behind the other's computation. In flight: 2p+1 half-size activations. Counted one after the
//! other and with F = I = W the bubble is (p−1)/(6m+p−1).

use std::collections::VecDeque;

use super::super::{Action, Batching, Kind, Placement, ScheduleError, Shape};
use super::entry::{Entry, Generate, two_stages};

/// Forward and backward side by side, there and back.
pub const DUAL_PIPE_V: Entry = Entry {
    name: "DualPipeV",
    about: "there and back, a forward overlapped with a backward: communication of one hides behind the other",
    placement: Placement::V,
    batching: |_| Batching::Eager,
    check,
    generate: Generate::Rank(write),
};

fn check(shape: Shape) -> Result<(), ScheduleError> {
    two_stages("DualPipeV", shape)?;
    if shape.microbatches >= shape.stages() {
        return Ok(());
    }
    Err(ScheduleError::FewMicrobatches {
        schedule: "DualPipeV",
        least: shape.stages(),
        why: "one for each stage",
        found: shape.microbatches,
        remedy: "take smaller micro-batches, or ZBVZeroBubble",
    })
}

/// A rank's list so far: the next forward and backward of its two stages, and gradients of weights kept back.
struct Writer<'out> {
    stages: [u16; 2],
    forwards: [u32; 2],
    backwards: [u32; 2],
    kept: VecDeque<Action>,
    out: &'out mut Vec<Action>,
}

impl Writer<'_> {
    fn forward(&mut self, chunk: usize) {
        self.out.push(Action::new(self.stages[chunk], Kind::Forward, self.forwards[chunk]));
        self.forwards[chunk] += 1;
    }

    fn backward(&mut self, chunk: usize, split: bool) {
        let (stage, microbatch) = (self.stages[chunk], self.backwards[chunk]);
        self.backwards[chunk] += 1;
        self.out.push(Action::new(stage, if split { Kind::Input } else { Kind::Backward }, microbatch));
        if split {
            self.kept.push_back(Action::new(stage, Kind::Weight, microbatch));
        }
    }

    fn weight(&mut self) {
        self.out.extend(self.kept.pop_front());
    }

    /// A forward beside a backward.
    fn both(&mut self, forward: usize, backward: usize) {
        self.forward(forward);
        if let Some(last) = self.out.last_mut() {
            last.joined = true;
        }
        self.backward(backward, false);
    }
}

fn write(shape: Shape, rank: u32, out: &mut Vec<Action>) {
    let stages = [0, 1].map(|chunk| shape.stage(Placement::V, rank, chunk));
    let mut w = Writer { stages, forwards: [0; 2], backwards: [0; 2], kept: VecDeque::new(), out };
    let below = shape.ranks - 1 - rank;
    for _ in 0..2 * below {
        w.forward(0);
    }
    for _ in 0..=rank {
        w.forward(0);
        w.forward(1);
    }
    for _ in 0..below {
        w.backward(1, true);
        w.weight();
        w.forward(1);
    }
    for turn in 0..shape.microbatches - 2 * shape.ranks + rank + 1 {
        if turn == 0 && below == 0 {
            w.forward(0);
            w.backward(1, false);
        } else {
            w.both(0, 1);
        }
        w.both(1, 0);
    }
    for _ in 0..below {
        w.backward(1, false);
        w.both(1, 0);
    }
    // The second half of the last backwards comes in halves; on odd ranks one backward earlier.
    let (turns, odd) = (rank + 1, rank % 2 == 1);
    let mut split = false;
    for turn in 0..turns {
        split |= odd && turn == turns / 2;
        w.backward(1, split);
        split |= !odd && turn == turns / 2;
        w.backward(0, split);
    }
    for _ in 0..below {
        w.weight();
        w.backward(0, split);
    }
    for _ in 0..=rank {
        w.weight();
    }
}
