//! Cross-entropy in Transformer Engine's kernels (`pytorch/cross_entropy.py`, `pytorch/triton/cross_entropy.py`, 2.9): one
//! reads the logits for three numbers a token, which tensor-parallel ranks gather; one leaves the gradient in the logits'
//! place. In backward that is multiplied by the gradient of the losses, after the host has sent a one to compare with.

use super::super::super::frame::{Node, Results};
use super::super::super::storage::Gradient;
use super::super::super::{Eager, Frame};
use super::{INDEX, NUMBER};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, Collective, DType, Dispatch, Graphs, MemoryKind, Work};
use crate::units::Bytes;

/// Numbers that a rank knows of a token's logits: the largest, the sum of exponentials, the label's.
const KNOWN: u64 = 3;
/// What 2.20 gathers of them, and what it keeps: the largest and the sum.
const LOCAL: u64 = 4;
const STATISTICS: u64 = 2;

impl Eager {
    pub(in super::super) fn engine_vocabulary_loss(
        &mut self,
        graph: &Graph,
        op: &Op,
        frame: &mut Frame,
        results: Results,
    ) {
        let (logits, tokens) = (&graph.values[op.inputs[0]], graph.dims.tokens());
        let (bytes, numbers) = (logits.bytes(), tokens * NUMBER);
        let labels = (graph.dims.b > 1).then(|| self.tiny(tokens * INDEX, "aten.clone"));
        let mut losses = self.made("aten.zeros", numbers, 0, self.settings.forward);
        let own = self.made("aten.zeros", KNOWN * numbers, 0, self.settings.forward);
        self.pointwise("te.online_softmax", MemoryKind::Softmax, bytes, KNOWN * numbers, self.settings.forward);
        let ranks = graph.dims.tensor.ranks;
        let all = (ranks > 1).then(|| {
            let all = self.made("aten.zeros", KNOWN * numbers * ranks, 0, self.settings.forward);
            self.exchange_now(Collective::AllGather, KNOWN * numbers * ranks, DType::Fp32);
            all
        });
        self.pointwise("te.cross_entropy", MemoryKind::Softmax, bytes, bytes + numbers, Dispatch::Compiled);
        all.into_iter().chain([own]).for_each(|storage| self.release(storage));
        if let Some(labels) = labels {
            let copy = self.tiny(numbers, "aten.clone");
            self.release(losses);
            self.release(labels);
            losses = copy;
        }
        frame.slots[op.outputs[0]] = Some(losses);
        let kept = self.retain(Self::value(frame, op.inputs[0]));
        self.keep(frame, results, &[kept]);
    }

    pub(in super::super) fn engine_vocabulary_loss_backward(
        &mut self,
        node: Node<'_>,
        frame: &mut Frame,
        gradient: super::Storage,
    ) {
        let Node { graph, op, index } = node;
        let bytes = graph.values[op.inputs[0]].bytes();
        // Where a graph is the whole step, nothing is compared (`is_cg_capturable`).
        if self.program.graphs_now() != Graphs::Both {
            let one = self.temporary(NUMBER, "aten.empty");
            let sent = Work::HostCopy { bytes: Bytes(NUMBER), to_host: false };
            self.program.launch(self.stream, "aten._to_copy", sent, self.settings.backward);
            self.program.wait_for_host(self.stream);
            self.release(one);
        }
        self.pointwise("te.element_mul", MemoryKind::Elementwise, bytes, bytes, Dispatch::Compiled);
        self.release(gradient);
        let [result] = Self::saved_by(frame, index);
        self.accumulate(frame, op.inputs[0], Gradient { storage: result, view: true });
    }

    /// Transformer Engine 2.20's: forward keeps a copy of the logits and two numbers a token; nothing is sent from the host.
    pub(in super::super) fn copying_vocabulary_loss(
        &mut self,
        graph: &Graph,
        op: &Op,
        frame: &mut Frame,
        results: Results,
    ) {
        let (logits, tokens) = (&graph.values[op.inputs[0]], graph.dims.tokens());
        let (bytes, numbers, dispatch) = (logits.bytes(), tokens * NUMBER, self.settings.forward);
        let labels = self.tiny(tokens * INDEX, "aten.clone");
        let copy = self.storage_as(bytes, Category::Logits, "te.cross_entropy");
        let losses = self.storage(numbers, "te.cross_entropy");
        let statistics = self.storage(STATISTICS * numbers, "te.cross_entropy");
        let ranks = graph.dims.tensor.ranks;
        let own = (ranks > 1).then(|| self.storage(LOCAL * numbers, "te.cross_entropy"));
        self.pointwise("te.cross_entropy", MemoryKind::Softmax, bytes, bytes + LOCAL * numbers, dispatch);
        if let Some(own) = own {
            let all = self.storage(LOCAL * numbers * ranks, "te.cross_entropy");
            self.exchange_now(Collective::AllGather, LOCAL * numbers * ranks, DType::Fp32);
            let read = LOCAL * numbers * ranks;
            self.pointwise("te.cross_entropy", MemoryKind::Elementwise, read, numbers, Dispatch::Compiled);
            [all, own].into_iter().for_each(|storage| self.release(storage));
        }
        frame.slots[op.outputs[0]] = Some(losses);
        self.keep(frame, results, &[copy, statistics, labels]);
    }

    pub(in super::super) fn copying_vocabulary_loss_backward(
        &mut self,
        node: Node<'_>,
        frame: &mut Frame,
        gradient: super::Storage,
    ) {
        let Node { graph, op, index } = node;
        let bytes = graph.values[op.inputs[0]].bytes();
        self.pointwise("te.cross_entropy_backward", MemoryKind::Elementwise, bytes, bytes, self.settings.backward);
        self.release(gradient);
        let [copy, statistics, labels] = Self::saved_by(frame, index);
        [statistics, labels].into_iter().for_each(|storage| self.release(storage));
        self.accumulate(frame, op.inputs[0], copy.into());
    }
}
