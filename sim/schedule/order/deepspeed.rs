//! DeepSpeed's schedule (`deepspeed/runtime/pipe/schedule.py`, `TrainSchedule`, 0.5.10 to 0.8.2).
//!
//! Each rank computes in 1F1B's order, whatever the number of micro-batches. What sets it apart is when it sends and
//! receives ([`lower`](fn@super::super::lower)).

use super::super::{Batching, Placement};
use super::entry::{Entry, Generate, one_stage};
use super::one_forward_one_backward;

/// `TrainSchedule`.
pub const DEEPSPEED_1F1B: Entry = Entry {
    name: "DeepSpeed1F1B",
    about: "DeepSpeed's TrainSchedule: 1F1B whose sends wait for the next step, each a call of its own",
    placement: Placement::Loop,
    batching: |_| Batching::Parity,
    check: |shape| one_stage("DeepSpeed1F1B", shape),
    generate: Generate::Rank(one_forward_one_backward::write),
};
