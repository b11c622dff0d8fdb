//! What dispatchers put their ways of rows together from (`core/transformer/moe/token_dispatcher.py`, `moe_utils.py`,
//! 0.16.1).
//!
//! How many rows go where is known on the device. The host needs the numbers for the sizes of what is received: they are
//! copied on a stream of their own and the host waits for them before the first exchange. Rows in their order are selected
//! by a mask, whose size the host waits for, too; Transformer Engine's kernels take the size as given.

use super::super::frame::{Node, Results};
use super::super::framework::Experts;
use super::super::storage::Gradient;
use super::super::{COMPUTE, Eager, ExpertRanks, Frame, Storage};
use super::dispatch;
use super::dispatcher::Selected;
use crate::model::graph::{Graph, Op};
use crate::model::megatron::experts::{Routed, RoutedOp};
use crate::plan::megatron::TokenDispatcher;
use crate::program::{Collective, Comm, DType, Dispatch, GroupId, MemoryKind, StreamId, Work};
use crate::units::Bytes;

/// Bytes of an index, of a row's number of Transformer Engine's kernels.
const INDEX: u64 = 8;
const NUMBER: u64 = 4;

impl Eager {
    pub(super) fn ranks_of_experts(&self) -> Option<&ExpertRanks> {
        self.framework.megatron()?.experts.as_ref().map(|experts| &experts.ranks)
    }

    fn experts_mut(&mut self) -> Option<&mut Experts> {
        self.framework.megatron_mut()?.experts.as_mut()
    }

    /// Runs operators in a stretch where the host waits for counts of rows only when rows are exchanged, not when they are put
    /// in order.
    pub fn with_counts_later(&mut self, run: impl FnOnce(&mut Eager)) {
        self.experts_mut().into_iter().for_each(|experts| experts.counts_later = true);
        run(self);
        self.experts_mut().into_iter().for_each(|experts| experts.counts_later = false);
    }

    fn counts_later(&self) -> bool {
        self.framework
            .megatron()
            .and_then(|megatron| megatron.experts.as_ref())
            .is_some_and(|experts| experts.counts_later)
    }

    fn dispatcher(&self) -> TokenDispatcher {
        self.ranks_of_experts().expect("a job with experts says how rows get to them").dispatcher
    }

    /// A collective that the stream at hand waits for, if several ranks take part. `bytes`: the whole buffer.
    pub(super) fn expert_exchange(
        &mut self,
        who: impl Fn(&ExpertRanks) -> Option<(GroupId, StreamId)>,
        kind: Collective,
        bytes: u64,
        dtype: DType,
    ) {
        let Some((group, stream)) = self.ranks_of_experts().and_then(who) else { return };
        if self.in_line() {
            return self.program.collective(self.stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
        }
        self.program.wait_stream(stream, self.stream);
        self.program.collective(stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
        self.program.wait_stream(self.stream, stream);
    }

    pub(super) fn routed(&mut self, graph: &Graph, op: &Op, kind: RoutedOp, frame: &mut Frame, results: Results) {
        let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let (read, bytes) = (input.bytes(), out.bytes());
        let mut saved = vec![];
        match kind {
            RoutedOp::Route { .. } => return self.route(graph, op, kind, frame, results),
            RoutedOp::Count { routed } => {
                let counts = self.gather_counts(routed);
                if let Some(experts) = self.experts_mut() {
                    experts.counts = counts;
                }
                frame.slots[op.outputs[0]] = Some(self.retain(Self::value(frame, op.inputs[0])));
            }
            RoutedOp::Select { .. } => return self.select_rows(graph, op, kind, frame, results),
            RoutedOp::Grouped { .. } => return self.grouped_linear(graph, op, kind, frame, results),
            RoutedOp::Weigh { fused: true, gated, clamped } => {
                return self.weigh_rows((graph, op), (gated, clamped), frame, results);
            }
            RoutedOp::Weigh { gated, .. } => return self.weigh_plainly(graph, op, gated, frame, results),
            RoutedOp::AddBiases => return self.add_biases(graph, op, frame, results),
            RoutedOp::Own { step, routed } => {
                return (dispatch::rules(self.dispatcher()).forward)(self, graph, op, step, routed, frame, results);
            }
            RoutedOp::Permute { fused, waits } => {
                let name = if fused { "te.permute" } else { "aten.index_select" };
                let rows = self.storage(bytes, name);
                self.pointwise(name, MemoryKind::Gather, bytes, bytes, self.settings.forward);
                frame.slots[op.outputs[0]] = Some(rows);
                saved.push(self.retain(Self::value(frame, op.inputs[1])));
                if waits && !self.counts_later() {
                    self.wait_for_counts();
                }
            }
            RoutedOp::Exchange => {
                let got = self.storage(bytes, "all_to_all_single");
                self.expert_exchange(|ranks| ranks.exchange, Collective::AllToAll, read.max(bytes), out.dtype);
                frame.slots[op.outputs[0]] = Some(got);
            }
            RoutedOp::Collect => {
                let whole = self.storage(bytes, "all_gather_into_tensor");
                self.expert_exchange(|ranks| ranks.tensor, Collective::AllGather, bytes, out.dtype);
                frame.slots[op.outputs[0]] = Some(whole);
            }
            RoutedOp::Scatter => {
                let part = self.storage(bytes, "reduce_scatter_tensor");
                self.expert_exchange(|ranks| ranks.tensor, Collective::ReduceScatter, read, out.dtype);
                frame.slots[op.outputs[0]] = Some(part);
            }
            RoutedOp::Fill => {
                let name = if bytes > read { "te.fused_multi_row_padding" } else { "te.fused_multi_row_unpadding" };
                let filled = self.made(name, bytes, read, self.settings.forward);
                frame.slots[op.outputs[0]] = Some(filled);
            }
            RoutedOp::Sort { fused } => {
                let name = if fused { "te.sort_chunks_by_map" } else { "aten.cat" };
                let sorted = self.made(name, bytes, bytes, self.settings.forward);
                frame.slots[op.outputs[0]] = Some(sorted);
            }
            RoutedOp::Unpermute { fused } => {
                let tokens = if fused {
                    let tokens = self.storage(bytes, "te.unpermute");
                    self.pointwise("te.unpermute", MemoryKind::Gather, read, bytes, self.settings.forward);
                    tokens
                } else {
                    let zeros = self.few("aten.zeros", bytes, 0);
                    self.pointwise("aten.scatter_add_", MemoryKind::Scatter, 2 * read, read, self.settings.forward);
                    zeros
                };
                frame.slots[op.outputs[0]] = Some(tokens);
                saved.push(self.retain(Self::value(frame, op.inputs[1])));
            }
            RoutedOp::AddShared => {
                let sum = self.retain(Self::value(frame, op.inputs[0]));
                self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.forward);
                frame.slots[op.outputs[0]] = Some(sum);
            }
        }
        self.keep(frame, results, &saved);
    }

    pub(super) fn routed_backward(&mut self, node: Node<'_>, kind: RoutedOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let (bytes, read, dispatch) = (input.bytes(), out.bytes(), self.settings.backward);
        let result = match kind {
            RoutedOp::Route { .. } => return self.route_backward(node, kind, frame, gradient),
            RoutedOp::Count { .. } => unreachable!("counts have no gradient"),
            RoutedOp::AddShared => return self.add_shared_backward(node, bytes, frame, gradient),
            RoutedOp::Select { .. } => return self.select_rows_backward(node, kind, frame, gradient),
            RoutedOp::Grouped { .. } => return self.grouped_linear_backward(node, kind, frame, gradient),
            RoutedOp::Weigh { fused: true, gated, clamped } => {
                return self.weigh_rows_backward(node, (gated, clamped), frame, gradient);
            }
            RoutedOp::Weigh { gated, .. } => return self.weigh_plainly_backward(node, gated, frame, gradient),
            RoutedOp::AddBiases => return self.add_biases_backward(node, frame, gradient),
            RoutedOp::Own { step, routed } => {
                return (dispatch::rules(self.dispatcher()).backward)(self, node, step, routed, frame, gradient);
            }
            RoutedOp::Permute { fused: true, .. } => {
                let result = self.temporary(bytes, "te.unpermute");
                self.pointwise("te.unpermute", MemoryKind::Gather, read, bytes, dispatch);
                result
            }
            RoutedOp::Permute { .. } => {
                let zeros = self.pointwise_gradient("aten.new_zeros", bytes, 0);
                self.pointwise("aten.index_add_", MemoryKind::Scatter, 2 * read, read, Dispatch::Extra);
                zeros
            }
            RoutedOp::Exchange => {
                let result = self.temporary(bytes, "all_to_all_single");
                self.expert_exchange(|ranks| ranks.exchange, Collective::AllToAll, read.max(bytes), out.dtype);
                result
            }
            RoutedOp::Collect => {
                let result = self.temporary(bytes, "reduce_scatter_tensor");
                self.expert_exchange(|ranks| ranks.tensor, Collective::ReduceScatter, read, out.dtype);
                result
            }
            RoutedOp::Scatter => {
                let result = self.temporary(bytes, "all_gather_into_tensor");
                self.expert_exchange(|ranks| ranks.tensor, Collective::AllGather, bytes, out.dtype);
                result
            }
            RoutedOp::Fill => {
                let name = if bytes > read { "te.fused_multi_row_padding" } else { "te.fused_multi_row_unpadding" };
                self.pointwise_gradient(name, bytes, read)
            }
            RoutedOp::Sort { fused } => {
                let name = if fused { "te.sort_chunks_by_map" } else { "aten.cat" };
                self.pointwise_gradient(name, bytes, bytes)
            }
            RoutedOp::Unpermute { fused } => {
                let name = if fused { "te.permute" } else { "aten.gather" };
                let result = self.temporary(bytes, name);
                self.pointwise(name, MemoryKind::Gather, bytes, bytes, dispatch);
                result
            }
        };
        self.let_go(frame, index, gradient);
        // Rows in their order are rows of a view of the tokens, whose gradients are added up there.
        let view = !matches!(kind, RoutedOp::Permute { .. });
        self.accumulate(frame, op.inputs[0], Gradient { storage: result, view });
    }

    /// An addition in place to a view: the view is made anew by strides, and its gradient put in place of a copy of the whole
    /// (`torch/csrc/autograd/functions/tensor.cpp`, `CopySlices`).
    fn add_shared_backward(&mut self, node: Node<'_>, bytes: u64, frame: &mut Frame, gradient: Storage) {
        let Node { op, index, .. } = node;
        let dispatch = self.settings.backward;
        let copy =
            |eager: &mut Eager, dispatch| eager.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, dispatch);
        let strided = self.pointwise_gradient("aten.new_zeros", bytes, 0);
        copy(self, Dispatch::Extra);
        self.let_go(frame, index, gradient);
        let whole = self.temporary(bytes, "aten.new_empty_strided");
        copy(self, dispatch);
        let slice = self.temporary(bytes, "aten.clone");
        copy(self, Dispatch::Extra);
        copy(self, Dispatch::Extra);
        self.release(strided);
        self.accumulate(frame, op.inputs[0], whole.into());
        self.accumulate(frame, op.inputs[1], slice.into());
    }

    /// How many rows go where, told to all ranks; what the host is to be told.
    fn gather_counts(&mut self, routed: Routed) -> Vec<Storage> {
        let peers = routed.ranks * routed.tensor;
        let counts = self.count(routed);
        let mut told = vec![];
        if peers > 1 {
            let sent = self.few("aten.sum", routed.ranks * INDEX, routed.experts * INDEX);
            let all = self.storage(routed.experts * INDEX * peers, "all_gather_into_tensor");
            let gathered = routed.experts * INDEX * peers;
            self.expert_exchange(|ranks| ranks.counts, Collective::AllGather, gathered, DType::Int64);
            let own = self.few("aten.clone", routed.local * peers * INDEX, routed.local * peers * INDEX);
            let of_rank = self.few("aten.sum", peers * INDEX, routed.local * peers * INDEX);
            let of_tensor = self.few("aten.sum", routed.tensor * INDEX, peers * INDEX);
            let of_expert = self.few("aten.sum", routed.local * INDEX, routed.local * peers * INDEX);
            self.release(counts);
            self.release(all);
            told.extend([sent, of_rank, of_tensor, own, of_expert]);
        } else {
            self.release(counts);
        }
        told
    }

    /// How many rows go where, on the way to the host.
    fn tell_counts(&mut self, routed: Routed, told: Vec<Storage>) {
        let peers = routed.ranks * routed.tensor;
        let mut read = vec![routed.local * INDEX];
        if peers > 1 {
            read.extend([routed.ranks, routed.ranks, routed.tensor, routed.local * peers].map(|n| n * INDEX));
        }
        told.into_iter().for_each(|storage| self.release(storage));
        let Some(copies) = self.ranks_of_experts().map(|ranks| ranks.copies) else { return };
        self.program.wait_stream(copies, self.stream);
        for bytes in read {
            let work = Work::HostCopy { bytes: Bytes(bytes), to_host: true };
            self.program.launch(copies, "aten._to_copy", work, self.settings.forward);
        }
    }

    /// The host needs the sizes of what it is about to receive.
    pub fn wait_for_counts(&mut self) {
        if let Some(copies) = self.ranks_of_experts().map(|ranks| ranks.copies) {
            self.program.wait_for_host(copies);
        }
    }

    /// What a mask selects: where its ones are, a number that the host waits for, and the values there.
    pub(super) fn masked_select(&mut self, mask: u64, Selected { rows, bytes }: Selected) -> Storage {
        const NAME: &str = "aten.nonzero";
        let places = self.storage(2 * rows * INDEX, NAME);
        let count = self.storage(NUMBER, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, mask, NUMBER, self.settings.forward);
        self.program.launch(COMPUTE, NAME, Work::HostCopy { bytes: Bytes(NUMBER), to_host: true }, Dispatch::Extra);
        self.program.wait_for_host(COMPUTE);
        self.pointwise(NAME, MemoryKind::Elementwise, mask, rows * INDEX, Dispatch::Extra);
        self.pointwise(NAME, MemoryKind::Elementwise, rows * INDEX, 2 * rows * INDEX, Dispatch::Extra);
        self.release(count);
        let selected = self.storage(bytes, "aten.index");
        let read = 2 * rows * INDEX + bytes;
        self.pointwise("aten.index", MemoryKind::Gather, read, bytes, self.settings.forward);
        self.release(places);
        selected
    }

    /// Values put where a mask's ones are, in place: how many come before each is counted first.
    pub(super) fn masked_scatter(&mut self, mask: u64, bytes: u64) {
        const NAME: &str = "aten.masked_scatter_";
        let before = self.temporary(mask * INDEX, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, mask, mask * INDEX, Dispatch::Extra);
        self.pointwise(NAME, MemoryKind::Elementwise, mask * INDEX + bytes, bytes, self.settings.backward);
        self.release(before);
    }

    /// As many tokens of each expert as it takes, by a sort of the map; their weights; what backward needs.
    fn sorted_rows(&mut self, routed: Routed, probs: u64, chosen: u64) -> (Storage, Storage, Vec<Storage>) {
        let every = routed.tokens * routed.experts;
        let small = self.few("aten._to_copy", every, every);
        let map = self.few("aten.clone", every, every);
        self.release(small);
        let values = self.storage(every, "aten.sort");
        let order = self.made("aten.sort", every * INDEX, every, self.settings.forward);
        self.pointwise("aten.sort", MemoryKind::Elementwise, every * INDEX, every * INDEX, Dispatch::Extra);
        let rows = self.few("aten.clone", routed.sent * INDEX, routed.sent * INDEX);
        [values, order].into_iter().for_each(|storage| self.release(storage));
        let by_expert = self.few("aten.clone", probs, probs);
        let places = self.few("aten.add", routed.sent * INDEX, routed.sent * INDEX);
        let weights = self.few("aten.index_select", chosen, chosen + routed.sent * INDEX);
        [map, by_expert].into_iter().for_each(|storage| self.release(storage));
        (rows, weights, vec![places])
    }

    fn select_rows(&mut self, graph: &Graph, op: &Op, kind: RoutedOp, frame: &mut Frame, results: Results) {
        let RoutedOp::Select { routed, fused, counted } = kind else { unreachable!("called for selections") };
        let (probs, chosen) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let every = routed.tokens * routed.experts;
        if !routed.pads() {
            let told = match self.experts_mut() {
                Some(experts) if counted => std::mem::take(&mut experts.counts),
                _ => self.gather_counts(routed),
            };
            self.tell_counts(routed, told);
        }
        if routed.capacity.is_some() && !routed.pads() {
            // How many rows there are, the host knows no earlier.
            self.wait_for_counts();
        }
        let (rows, weights, mut saved) = if fused {
            let map = graph.values[op.outputs[1]].bytes();
            let rows = self.storage(map, "te.make_row_id_map");
            for dispatch in [self.settings.forward, Dispatch::Extra, Dispatch::Extra] {
                self.pointwise("te.make_row_id_map", MemoryKind::Elementwise, map, map, dispatch);
            }
            (rows, self.storage(chosen.bytes(), "te.permute"), vec![])
        } else if routed.pads() {
            self.sorted_rows(routed, probs.bytes(), chosen.bytes())
        } else {
            let mask = self.few("aten.clone", every, every);
            let tokens = self.few("aten.arange", routed.tokens * INDEX, 0);
            let rows = self.masked_select(every, Selected { rows: routed.sent, bytes: routed.sent * INDEX });
            let by_expert = self.few("aten.clone", probs.bytes(), probs.bytes());
            let weights = self.masked_select(every, Selected { rows: routed.sent, bytes: chosen.bytes() });
            self.release(tokens);
            (rows, weights, vec![by_expert, mask])
        };
        frame.slots[op.outputs[0]] = Some(weights);
        frame.slots[op.outputs[1]] = Some(rows);
        if fused {
            saved.push(self.retain(rows));
        }
        self.keep(frame, results, &saved);
    }

    /// The gradient of the chosen weights, as a matrix over all experts.
    fn select_rows_backward(&mut self, node: Node<'_>, kind: RoutedOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let RoutedOp::Select { routed, fused, .. } = kind else { unreachable!("called for selections") };
        let bytes = graph.values[op.inputs[0]].bytes();
        let result = self.pointwise_gradient("aten.zeros_like", bytes, 0);
        if !fused && !routed.pads() {
            self.masked_scatter(routed.tokens * routed.experts, bytes);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
