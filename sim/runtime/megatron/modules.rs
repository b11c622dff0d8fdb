//! What a chunk is made of: a framework's modules, each as a graph of operators.

use crate::model::graph::Graph;
use crate::plan::megatron::Split;

/// What of a block may differ from its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Keys that a query reaches; none: all before it.
    pub window: Option<u64>,
    /// Whether it has experts.
    pub experts: bool,
}

impl Kind {
    /// That of a model's block.
    pub(super) fn of(job: &Split, layer: u64) -> Kind {
        Kind { window: job.model.window(layer), experts: job.model.experts_in(layer).is_some() }
    }
}

/// The modules that chunks are made of, written down as operators.
#[derive(Clone, Copy, Debug)]
pub struct Modules {
    /// Inputs: tokens, positions.
    pub embedding: fn(&Split) -> Graph,
    /// Inputs: the hidden state, the attention mask.
    pub block: fn(&Split, Kind) -> Graph,
    /// Inputs: the hidden state, the loss mask. Its last operator makes the loss, and may make a count of tokens and a
    /// report for the log.
    pub head: fn(&Split) -> Graph,
}
