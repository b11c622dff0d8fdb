//! GPipe (Huang et al. 2019, arXiv 1811.06965): all forwards, then all backwards.
//!
//! With equal stages the bubble is (p−1)/(m+p−1), and all m micro-batches are in flight at once.

use super::super::{Action, Batching, Kind, Placement, Shape};
use super::entry::{Entry, Generate, one_stage};

/// All forwards, then all backwards in the same order.
pub const GPIPE: Entry = Entry {
    name: "GPipe",
    about: "all forwards, then all backwards",
    placement: Placement::Loop,
    batching: |_| Batching::Separate,
    check: |shape| one_stage("GPipe", shape),
    generate: Generate::Rank(write),
};

/// One rank's list.
pub(super) fn write(shape: Shape, rank: u32, out: &mut Vec<Action>) {
    let stage = shape.stage(Placement::Loop, rank, 0);
    for kind in [Kind::Forward, Kind::Backward] {
        out.extend((0..shape.microbatches).map(|microbatch| Action::new(stage, kind, microbatch)));
    }
}
