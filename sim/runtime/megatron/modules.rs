//! What a chunk is made of: a framework's modules, each as a graph of operators.

use crate::model::Layer;
use crate::model::graph::Graph;
use crate::plan::megatron::Split;

/// The modules that chunks are made of, written down as operators.
#[derive(Clone, Copy, Debug)]
pub struct Modules {
    /// Inputs: tokens, positions.
    pub embedding: fn(&Split) -> Graph,
    /// Inputs: the hidden state, the attention mask.
    pub block: fn(&Split, &Layer) -> Graph,
    /// Inputs: the hidden state, the loss mask. Its last operator makes the loss, and may make a count of tokens and a
    /// report for the log.
    pub head: fn(&Split) -> Graph,
}
