//! ZB-H2 (Qi et al. 2024, arXiv 2401.10241, figure 3): no bubble between a rank's first action and its last, for twice 1F1B's memory.
//!
//! Twice the warm-up of 1F1B fills the time until the first gradient arrives, and rank r keeps 2r gradients of weights
//! back. With F = I = W and m ≥ 2p−1 no rank idles between its first action and its last: ranks start one after the other
//! and end one after the other. At most 2p−1 activations are in flight.

use super::super::{Batching, Placement};
use super::entry::{Entry, Generate, one_stage};
use super::interleaved::{Plan, write};

/// 1F1B with backward in halves and a warm-up there and back.
pub const ZB_H2: Entry = Entry {
    name: "ZB-H2",
    about: "1F1B with backward in halves and twice the warm-up: once it has begun no rank waits, for twice the memory",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: |shape| one_stage("ZB-H2", shape),
    generate: Generate::Rank(|shape, rank, out| {
        let plan =
            Plan { round: shape.microbatches, warmup: 2 * (shape.ranks - 1 - rank), weights_after: Some(2 * rank) };
        write(shape, rank, plan, out);
    }),
};
