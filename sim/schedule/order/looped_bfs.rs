//! Breadth-first pipeline parallelism (Lamy-Poirier 2023, arXiv 2211.05953): GPipe over several stages a rank.
//!
//! A rank takes all micro-batches through its first stage before it turns to the next, so that each stage's parameters
//! are gathered once. Bubble (p−1)/(v·m+p−1) for m ≥ p; all v·m activations are in flight. Backwards run from the last
//! micro-batch to the first.

use super::super::{Action, Batching, Kind, Placement};
use super::entry::{Entry, Generate, any};

/// GPipe over several stages a rank, breadth first.
pub const LOOPED_BFS: Entry = Entry {
    name: "LoopedBFS",
    about: "GPipe over several stages a rank, breadth first: each stage's parameters are gathered once",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: any,
    generate: Generate::Rank(|shape, rank, out| {
        for chunk in 0..shape.virtual_stages {
            let stage = shape.stage(Placement::Loop, rank, chunk);
            out.extend((0..shape.microbatches).map(|microbatch| Action::new(stage, Kind::Forward, microbatch)));
        }
        for chunk in (0..shape.virtual_stages).rev() {
            let stage = shape.stage(Placement::Loop, rank, chunk);
            out.extend((0..shape.microbatches).rev().map(|microbatch| Action::new(stage, Kind::Backward, microbatch)));
        }
    }),
};
