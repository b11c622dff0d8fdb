//! What a forward leaves for its backward.

use super::keep::Keep;
use super::offload::Sent;
use super::params::ParamMap;
use super::storage::{Gradient, Storage};
use crate::model::graph::{Graph, Op, ValueId};
use crate::program::EventId;

/// One run of a graph's forward, with what backward needs.
#[derive(Clone, Debug)]
pub struct Frame {
    pub(super) slots: Vec<Option<Storage>>,
    pub(super) gradients: Vec<Option<Gradient>>,
    /// By value, whether it needs a gradient; empty where all do.
    pub(super) needs: Vec<bool>,
    /// Gradients that have come from another stream, and when they were made.
    pub(super) came: Vec<(usize, EventId)>,
    pub(super) saved: Vec<Storage>,
    /// For each operator, the end of its part of `saved`.
    pub(super) saved_end: Vec<u32>,
    pub(super) kept: Vec<Storage>,
    pub(super) kept_end: Vec<u32>,
    pub(super) params: ParamMap,
    /// Gradients so far of parameters whose slices are used one after the other, by the graph's index.
    pub(super) slices: Vec<(usize, Storage)>,
    pub(super) checkpoint: Option<Keep>,
    pub(super) input: Storage,
    /// The input, where it is in the host's memory until it is needed.
    pub(super) sent: Option<Sent>,
    /// Whether the checkpoint itself holds the input until backward has used it.
    pub(super) holds_input: bool,
    pub(super) recomputed: bool,
    pub(super) halved: Box<Halved>,
    /// Parts that are recomputed on their own, as the graph lists them.
    pub(super) held: Vec<Held>,
}

impl Frame {
    /// Whether its forward ran inside a checkpoint.
    pub fn is_checkpointed(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// A frame in which nothing has run.
    pub(super) fn empty(graph: &Graph, input: Storage, params: ParamMap) -> Frame {
        Frame {
            slots: vec![None; graph.values.len()],
            gradients: vec![None; graph.values.len()],
            needs: graph.needs.clone(),
            came: vec![],
            saved: Vec::with_capacity(3 * graph.ops.len()),
            saved_end: Vec::with_capacity(graph.ops.len()),
            kept: vec![],
            kept_end: vec![],
            params,
            slices: vec![],
            checkpoint: None,
            input,
            holds_input: true,
            sent: None,
            recomputed: false,
            halved: Default::default(),
            held: vec![],
        }
    }

    /// The gradient of an operator's result is noted for the second half of a backward.
    pub(super) fn note(&mut self, index: usize, gradient: Storage) {
        self.halved.gradients.push((index, gradient));
    }
}

/// What the first half leaves for the second.
#[derive(Clone, Debug, Default)]
pub(super) struct Halved {
    /// Operators that read parameters, with the gradients of their results.
    pub(super) gradients: Vec<(usize, Storage)>,
    /// Other operators that still hold what they saved, last to first.
    pub(super) nodes: Vec<usize>,
}

/// A part that is recomputed, between its forward and its backward.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// What they read, which the checkpoint holds.
    pub(super) inputs: Vec<(ValueId, Storage)>,
    /// Results that were let go of, and are named for the copy.
    pub(super) results: Vec<Storage>,
    /// The second run.
    pub(super) frame: Option<Box<Frame>>,
}

/// An operator of one result, for which a storage has been taken: its name, and the bytes of all that it reads and makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub name: &'static str,
    pub read: u64,
    pub written: u64,
    pub output: Storage,
}

/// An operator of a graph whose backward runs: a node of autograd's graph.
#[derive(Clone, Copy)]
pub(super) struct Node<'g> {
    pub(super) graph: &'g Graph,
    pub(super) op: &'g Op,
    /// The operator's place in the graph.
    pub(super) index: usize,
}

/// What becomes of an operator's results besides its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Results {
    /// Autograd saves what backward needs.
    Save,
    /// A checkpointing policy keeps all results for the recompute.
    Keep,
    /// Nothing is kept.
    Forget,
}
