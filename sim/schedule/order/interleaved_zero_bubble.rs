//! Interleaved zero bubble (PyTorch's `ScheduleInterleavedZeroBubble`, after Qi et al. 2024, arXiv 2401.10241).
//!
//! Interleaved 1F1B with backward in halves: the gradient that the previous rank waits for goes first, gradients of
//! weights fill what would be idle. Rank r keeps r of them back. With F = I = W the bubble is (p−1)/(3·v·m+p−1); v·p
//! activations are in flight.

use super::super::{Batching, Placement};
use super::entry::{Entry, Generate};
use super::interleaved::{Plan, rounds, write};

/// Interleaved 1F1B with backward in halves.
pub const INTERLEAVED_ZERO_BUBBLE: Entry = Entry {
    name: "InterleavedZeroBubble",
    about: "interleaved 1F1B with backward in halves: gradients of weights fill the bubble",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: |shape| rounds("InterleavedZeroBubble", shape).map(|_| ()),
    generate: Generate::Rank(|shape, rank, out| {
        let round = shape.microbatches / (shape.microbatches / shape.ranks).max(1);
        let warmup = (shape.virtual_stages - 1) * round + shape.ranks - 1 - rank;
        write(shape, rank, Plan { round, warmup, weights_after: Some(rank) }, out);
    }),
};
