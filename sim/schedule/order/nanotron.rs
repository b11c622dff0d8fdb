//! nanotron's engine that runs all forwards, then all backwards (`parallel/pipeline_parallel/engine.py`).
//!
//! `AllForwardAllBackwardPipelineEngine` takes activations off a queue from its front, so the order is GPipe's: the
//! oldest micro-batch goes back first. Each send and each receive is a call of its own that the host waits for. Its other
//! engine, `OneForwardOneBackwardPipelineEngine`, runs Megatron's 1F1B.

use super::super::{Batching, Placement};
use super::entry::{Entry, Generate, one_stage};
use super::gpipe;

/// `AllForwardAllBackwardPipelineEngine`.
pub const AFAB: Entry = Entry {
    name: "AFAB",
    about: "nanotron's all forward, all backward: GPipe's order",
    placement: Placement::Loop,
    batching: |_| Batching::Separate,
    check: |shape| one_stage("AFAB", shape),
    generate: Generate::Rank(gpipe::write),
};
