//! Log-probabilities of sequences, and a loss over pairs of them ([`crate::model::preference`]).
//!
//! Of each sequence all tokens but the last predict one; T of them by V words are what is large. Numbers of one value a sequence are
//! launched, but the blocks that they take are left out.

mod torchtune;
mod trl;

use super::frame::{Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, ValueId};
use crate::model::preference::{LogProbs, PreferenceOp};
use crate::program::{Category, DType, Dispatch, MemoryKind};

/// Kernels on one number a pair, forward and back: ratios, their difference, β, log-sigmoid, sign, mean, quotient.
const FORWARD: [&str; 8] =
    ["aten.sub", "aten.sub", "aten.sub", "aten.mul", "aten.log_sigmoid_forward", "aten.neg", "aten.mean", "aten.div"];
const BACKWARD: [&str; 6] = ["aten.div", "aten.div", "aten.neg", "aten.log_sigmoid_backward", "aten.mul", "aten.neg"];

/// The sizes of logits whose last position predicts nothing.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Sequences.
    sequences: u64,
    /// Positions of a sequence, its last one too.
    positions: u64,
    /// Words.
    words: u64,
    dtype: DType,
}

impl Sizes {
    fn of(graph: &Graph, logits: ValueId) -> Sizes {
        let logits = &graph.values[logits];
        let (sequences, positions) = (graph.dims.b, graph.dims.s);
        Sizes { sequences, positions, words: logits.elements / (sequences * positions), dtype: logits.dtype }
    }

    /// Positions of so many sequences that predict a token.
    fn tokens(self, sequences: u64) -> u64 {
        sequences * (self.positions - 1)
    }

    /// Bytes of the logits of such positions.
    fn of_tokens(self, sequences: u64) -> u64 {
        self.tokens(sequences) * self.words * self.dtype.bytes()
    }

    /// Bytes of all logits of so many sequences.
    fn whole(self, sequences: u64) -> u64 {
        sequences * self.positions * self.words * self.dtype.bytes()
    }
}

impl Eager {
    pub(super) fn preference(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: PreferenceOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let sizes = |at: usize| Sizes::of(graph, op.inputs[at]);
        match kind {
            PreferenceOp::LogProbs(LogProbs::Torchtune { halves }) => {
                self.torchtune_log_probs(sizes(0), if halves { 2 } else { 1 }, frame, results);
            }
            PreferenceOp::LogProbs(LogProbs::Trl) => self.trl_log_probs(op, sizes(0), frame, results),
            PreferenceOp::Loss(code) => {
                return self.preference_loss(graph, op, code.names_logits().then(|| sizes(1)), frame);
            }
        }
        let made = graph.values[op.outputs[0]].bytes();
        let log_probs = self.storage(made, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Elementwise, made, made, self.settings.forward);
        frame.slots[op.outputs[0]] = Some(log_probs);
        if results == Results::Save {
            frame.saved_end.push(frame.saved.len() as u32);
        }
    }

    pub(super) fn preference_backward(
        &mut self,
        node: Node<'_>,
        kind: PreferenceOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let sizes = || Sizes::of(graph, op.inputs[0]);
        match kind {
            PreferenceOp::LogProbs(LogProbs::Torchtune { halves }) => {
                self.torchtune_backward(node, (sizes(), if halves { 2 } else { 1 }), frame, gradient);
            }
            PreferenceOp::LogProbs(LogProbs::Trl) => self.trl_backward(node, sizes(), frame, gradient),
            PreferenceOp::Loss(_) => {
                let bytes = graph.values[op.inputs[0]].bytes();
                self.one_a_pair(&BACKWARD, bytes, self.settings.backward);
                let of_log_probs = self.pointwise_gradient("aten.cat", bytes, bytes);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, op.inputs[0], of_log_probs.into());
            }
        }
    }

    fn preference_loss(&mut self, graph: &Graph, op: &Op, logged: Option<Sizes>, frame: &mut Frame) {
        let loss = self.storage(graph.values[op.outputs[0]].bytes(), "aten.mean");
        self.one_a_pair(&FORWARD, graph.values[op.inputs[0]].bytes(), self.settings.forward);
        frame.slots[op.outputs[0]] = Some(loss);
        if let Some(sizes) = logged {
            self.trl_metrics(sizes);
        }
        frame.saved_end.push(frame.saved.len() as u32);
    }

    fn one_a_pair(&mut self, kernels: &[&'static str], bytes: u64, dispatch: Dispatch) {
        for &kernel in kernels {
            self.pointwise(kernel, MemoryKind::Elementwise, 2 * bytes, bytes, dispatch);
        }
    }

    /// A block as large as logits, made by a kernel of forward.
    fn logits_block(&mut self, name: &'static str, kind: MemoryKind, read: u64, bytes: u64) -> Storage {
        let block = self.storage_as(bytes, Category::Logits, name);
        self.pointwise(name, kind, read, bytes, self.settings.forward);
        block
    }

    /// The same in backward.
    fn gradient_block(&mut self, name: &'static str, kind: MemoryKind, read: u64, bytes: u64) -> Storage {
        let block = self.storage_as(bytes, Category::BackwardTemporary, name);
        self.pointwise(name, kind, read, bytes, self.settings.backward);
        block
    }

    /// Backward of picking a token's number: zeros, into which its gradient goes.
    fn picked_gradient(&mut self, bytes: u64, tokens: u64) -> Storage {
        let zeros = self.gradient_block("aten.new_zeros", MemoryKind::Copy, 0, bytes);
        self.pointwise("aten.scatter_add_", MemoryKind::Gather, 12 * tokens, 4 * tokens, self.settings.backward);
        zeros
    }

    /// Backward of a part: zeros as large as the whole, into which its gradient, which goes, is copied.
    fn part_of_zeros(&mut self, part: Storage, whole: u64) -> Storage {
        let bytes = self.bytes(part);
        let zeros = self.gradient_block("aten.slice_backward", MemoryKind::Copy, 0, whole);
        self.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        self.release(part);
        zeros
    }
}
