//! A way of rows to the ranks of their experts and back: what it is called, what it can do, and how it is written down.

use crate::model::graph::{GraphBuilder, ValueId};
use crate::model::megatron::Routed;
use crate::program::DType;
use crate::runtime::Refusal;

/// What the router leaves, and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// How many rows are where.
    pub routed: Routed,
    /// Whether rows are put in order by Transformer Engine's kernels (`--moe-permute-fusion`).
    pub fused: bool,
    /// The hidden state behind its norm.
    pub tokens: ValueId,
    /// Whether that is a copy which nothing names once its rows are in order (`fc1_latent_proj`).
    pub passing: bool,
    /// Weights of the chosen experts, `[T, E]`.
    pub weights: ValueId,
    /// The map of the chosen, `[T, E]`.
    pub map: ValueId,
    /// The type of the weights.
    pub weighs: DType,
}

/// What a mask selects.
#[derive(Clone, Copy)]
pub(super) struct Selected {
    /// How many rows.
    pub(super) rows: u64,
    /// Bytes of all their values.
    pub(super) bytes: u64,
}

/// A stage of the experts that every token passes, where they overlap with a dispatcher's exchanges (`SharedExpertMLP`,
/// `core/transformer/moe/shared_experts.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The parts of the sequence are gathered.
    Gather,
    /// The first linear and the activation.
    First,
    /// The second linear, and the sum over ranks.
    Second,
}

/// Writes a stage down, on what the stage before has made: at first, the tokens.
pub type WriteStage<'b> = &'b mut dyn FnMut(&mut GraphBuilder, Stage, ValueId) -> ValueId;

/// Writes the experts of a rank down: from rows in the order of experts and their weights to what they make of them.
pub type Experts<'e> = &'e mut dyn FnMut(&mut GraphBuilder, [ValueId; 2]) -> ValueId;

/// How a job distributes its experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertParallel {
    /// Ranks that experts are distributed over.
    pub ranks: u32,
    /// Ranks that share an expert.
    pub tensor: u32,
    /// Whether experts take so many rows and no more.
    pub capacity: bool,
}

/// What a dispatcher can do, and how it is written down.
#[derive(Clone, Copy, Debug)]
pub struct Dispatcher {
    /// What it is, in a line.
    pub about: &'static str,
    /// Whether its exchanges overlap with another micro-batch (`--overlap-moe-expert-parallel-comm`; `transformer_config.py`).
    pub combines: bool,
    /// Whether shared experts can overlap with its exchanges (`--moe-shared-expert-overlap`; `transformer_config.py`).
    pub overlaps_shared: bool,
    /// What of a job it has no rules for, if anything.
    pub refuses: fn(ExpertParallel) -> Option<Refusal>,
    /// Writes down its way to the experts and back, overlapped with shared experts if it can and is given some.
    pub write: fn(&mut GraphBuilder, &Routing, Experts<'_>, Option<WriteStage<'_>>) -> ValueId,
    /// Bytes that it gathers into the buffer that all gathers share (`GlobalMemoryBuffer`), of a row's bytes.
    pub shared_buffer: fn(&Routed, u64) -> u64,
}
