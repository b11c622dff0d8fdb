//! What a chunk is made of: a framework's modules, each as a graph of operators.

use super::job::Job;
use crate::model::Layer;
use crate::model::graph::Graph;

/// The modules that chunks are made of, written down as operators.
#[derive(Clone, Copy, Debug)]
pub struct Modules {
    /// Inputs: tokens, positions.
    pub embedding: fn(&Job) -> Graph,
    /// Inputs: the hidden state, the attention mask.
    pub block: fn(&Job, &Layer) -> Graph,
    /// Inputs: the hidden state, the loss mask. Its last operator makes the loss, and may make a count of tokens and a
    /// report for the log.
    pub head: fn(&Job) -> Graph,
}
