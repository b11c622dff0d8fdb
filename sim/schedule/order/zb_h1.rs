//! ZB-H1 (Qi et al. 2024, arXiv 2401.10241, figure 3): 1F1B with backward in halves, in 1F1B's memory.
//!
//! Rank r keeps r gradients of weights back, so that every rank holds as much as the first. With F = I = W the bubble is
//! (p−1)/(3m+p−1), a third of 1F1B's; in general (p−1)·(F+I−W) idle on each rank while W ≤ F and W ≤ I.

use super::super::{Batching, Placement};
use super::entry::{Entry, Generate, one_stage};
use super::interleaved::{Plan, write};

/// 1F1B with backward in halves.
pub const ZB_H1: Entry = Entry {
    name: "ZB-H1",
    about: "1F1B with backward in halves: a third of its bubble in the same memory",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: |shape| one_stage("ZB-H1", shape),
    generate: Generate::Rank(|shape, rank, out| {
        let plan = Plan { round: shape.microbatches, warmup: shape.ranks - 1 - rank, weights_after: Some(rank) };
        write(shape, rank, plan, out);
    }),
};
