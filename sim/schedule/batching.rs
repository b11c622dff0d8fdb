//! How a schedule's sends and receives are issued, and what two families of schedules set besides.

use super::Shape;

/// How sends and receives are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Batching {
    /// Each receive before, each send after its computation, alone.
    Separate,
    /// A send that is followed by a receive for the other direction is issued with it in one batch.
    Paired,
    /// Stages forward in every other step, neighbours in turn, and send what a step has made at the start of the next.
    Parity,
    /// All ranks step together; after a step each sends what it computed and receives what its next one needs.
    Stepwise(Settings),
    /// Between computations as the lists say, which also hold the vocabulary's parts and exchanges.
    Vocabulary(VocabularySplit),
    /// Receives are posted as soon as the sender has issued its send; parameters are gathered and let go stage by stage.
    Eager,
}

/// What Megatron's interleaved order also depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Settings {
    /// `microbatch_group_size_per_vp_stage`: micro-batches in a round. By default, the number of ranks.
    pub group: u32,
    /// `overlap_moe_expert_parallel_comm`: one more forward before the first backward.
    pub overlap_experts: bool,
    /// Before there was a group size: all forwards first where micro-batches equal ranks.
    pub fill_first: bool,
}

impl Settings {
    /// Megatron's defaults.
    pub fn of(shape: Shape) -> Settings {
        Settings { group: shape.ranks, overlap_experts: false, fill_first: false }
    }

    /// Forwards of a rank before the first step of one forward and one backward.
    pub fn warmup(self, shape: Shape, rank: u32) -> u32 {
        let total = shape.virtual_stages * shape.microbatches;
        if self.fill_first && shape.microbatches == shape.ranks {
            return total;
        }
        let there_and_back = 2 * (shape.ranks - 1 - rank);
        total.min(there_and_back + (shape.virtual_stages - 1) * self.group + u32::from(self.overlap_experts))
    }
}

/// How the ranks meet over the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum VocabularySplit {
    /// Two reductions beside the computation, statistics first, then gradients (algorithm 1).
    TwoBarriers,
    /// One reduction beside the computation (algorithm 2).
    OneBarrier,
    /// Every exchange is waited for at once.
    Interlaced,
}
