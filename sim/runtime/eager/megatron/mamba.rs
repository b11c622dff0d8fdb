//! Megatron-Core's Mamba-2 mixer between its linears (`core/ssm/mamba_mixer.py`, `mamba_context_parallel.py`, 0.16.1).
//!
//! Unlike mamba_ssm's own module it gives the function (`mamba_split_conv1d_scan_combined`, mamba_ssm 2.3.2) neither the norm nor the output's
//! projection: the scan gates its result itself, and keeps what it was before; the norm of groups (`ops/triton/layernorm_gated.py`) stands
//! behind it and keeps what it reads. Ranks that share a sequence exchange the projection's five parts one by one.

use super::super::frame::{Node, Results};
use super::super::mamba::{self, Sizes};
use super::super::storage::Gradient;
use super::super::{COMPUTE, Eager, Frame, Storage};
use crate::model::Mamba2;
use crate::model::graph::{Graph, Op};
use crate::model::megatron::MambaOp;
use crate::program::{Collective, Comm, DType, GroupId, MemoryKind, StreamId};
use crate::units::Bytes;

/// Warps of a norm's program, for so many numbers of a row (`_layer_norm_bwd`).
fn warps(width: u64) -> u64 {
    (width.next_power_of_two() / 256).clamp(1, 8)
}

/// Widths of z, x, B, C and dt, and how often each is repeated before it is exchanged.
fn parts(m: Mamba2, ranks: u64) -> [(u64, u64); 5] {
    let (group, repeats) = (m.groups * m.state, (ranks / m.groups.max(1)).max(1));
    [(m.inner(), 1), (m.inner(), 1), (group, repeats), (group, repeats), (m.heads, 1)]
}

impl Eager {
    pub(super) fn megatron_mamba(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MambaOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let (read, dtype, dispatch) = (input.bytes(), input.dtype, self.settings.forward);
        let mut saved = vec![];
        let made = match kind {
            MambaOp::SequencesFirst | MambaOp::TokensFirst => self.made("aten.clone", read, read, dispatch),
            MambaOp::Scan(m) => {
                let (made, kept) = self.gated_scan(sizes(graph, op, m), m);
                saved.push(self.retain(Self::value(frame, op.inputs[0])));
                saved.extend(kept);
                made
            }
            MambaOp::Norm { groups } => {
                let rows = graph.dims.tokens();
                let made = self.storage(read, mamba::NORM);
                let numbers = self.storage(4 * groups * rows, mamba::NORM);
                self.scan_kernel(mamba::NORM, (read, read), true);
                saved = vec![self.retain(Self::value(frame, op.inputs[0])), numbers];
                made
            }
            MambaOp::ToHeads { mamba, ranks } => {
                self.tokens_for_heads(graph.dims.tokens(), mamba, ranks, (out.bytes(), dtype))
            }
            MambaOp::ToTokens => {
                let ordered = self.ordered(read, true);
                let arrived = self.exchanged(read, dtype, true);
                self.release(ordered);
                let made = self.ordered(read, true);
                self.release(arrived);
                made
            }
        };
        frame.slots[op.outputs[0]] = Some(made);
        self.keep(frame, results, &saved);
    }

    pub(super) fn megatron_mamba_backward(
        &mut self,
        node: Node<'_>,
        kind: MambaOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let (bytes, dtype) = (input.bytes(), input.dtype);
        let result = match kind {
            // The next linear copies what lies apart, the scan does not.
            MambaOp::SequencesFirst => self.ordered(bytes, false),
            MambaOp::TokensFirst => self.retain(gradient),
            MambaOp::Scan(m) => return self.gated_scan_backward(node, m, frame, gradient),
            MambaOp::Norm { groups } => {
                let width = graph.params[op.params[0]].rows;
                let result = self.temporary(bytes, mamba::NORM_BACKWARD);
                let programs = (u64::from(self.settings.sms) * 4_u64.div_ceil(warps(width / groups))).div_ceil(groups);
                let parts = self.temporary(4 * programs * width, mamba::NORM_BACKWARD);
                self.scan_kernel(mamba::NORM_BACKWARD, (2 * bytes, bytes + 4 * programs * width), false);
                let sum = self.temporary(4 * width, "aten.sum");
                self.scan_kernel("aten.sum", (4 * programs * width, 4 * width), false);
                let of_weight = self.temporary(width * dtype.bytes(), "aten._to_copy");
                self.scan_kernel("aten._to_copy", (4 * width, width * dtype.bytes()), false);
                self.release(sum);
                self.release(parts);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, op.inputs[0], result.into());
                return self.store_leaf(frame.params.index(op.params[0]), of_weight, dtype);
            }
            MambaOp::ToHeads { mamba, ranks } => {
                self.heads_for_tokens(graph.dims.tokens(), mamba, ranks, (out.bytes(), bytes, dtype))
            }
            MambaOp::ToTokens => {
                let parted = self.ordered(bytes, false);
                let arrived = self.exchanged(bytes, dtype, false);
                self.release(parted);
                let ordered = self.ordered(bytes, false);
                self.release(arrived);
                ordered
            }
        };
        let view = kind == MambaOp::TokensFirst;
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], Gradient { storage: result, view });
    }

    /// Convolution and scan: what it makes, and what it keeps beside its input.
    fn gated_scan(&mut self, size: Sizes, m: Mamba2) -> (Storage, [Storage; 4]) {
        let number = 4 * m.heads;
        let of_heads = |this: &mut Self, name: &'static str| {
            let made = this.storage(number, name);
            this.scan_kernel(name, (number, number), true);
            made
        };
        let wide = of_heads(self, "aten._to_copy");
        let rate = of_heads(self, "aten.exp");
        self.release(wide);
        let decay = of_heads(self, "aten.neg");
        let bias = of_heads(self, "aten._to_copy");
        let mixed = self.storage(size.channels, mamba::CONV);
        self.scan_kernel(mamba::CONV, (size.channels, size.channels), true);
        let start = self.scan_states(size, true, Self::storage);
        let gated = self.storage(size.inner, mamba::SCAN);
        let scanned = self.storage(size.inner, mamba::SCAN);
        let read = 2 * size.inner + size.states / 4 * size.dtype.bytes() + size.products + size.group;
        self.scan_kernel(mamba::SCAN, (read, 2 * size.inner), true);
        let rest = [start.steps[0], start.steps[1], start.states, start.last];
        [start.products, mixed].into_iter().chain(rest).for_each(|storage| self.release(storage));
        (gated, [scanned, decay, bias, rate])
    }

    fn gated_scan_backward(&mut self, node: Node<'_>, m: Mamba2, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let size = sizes(graph, op, m);
        let mixed = self.temporary(size.channels, mamba::CONV);
        self.scan_kernel(mamba::CONV, (size.channels, size.channels), false);
        let of_input = self.temporary(size.projected, "aten.empty_like");
        let of_channels = self.temporary(size.channels, "aten.empty_like");
        let of_heads = self.scan_backward(size, m, true);
        let element = size.dtype.bytes();
        let of_conv = self.temporary(m.channels() * m.conv * element, mamba::CONV_BACKWARD);
        let of_conv_bias = self.temporary(m.channels() * element, mamba::CONV_BACKWARD);
        self.scan_kernel(mamba::CONV_BACKWARD, (2 * size.channels, size.channels), false);
        self.release(of_channels);
        self.release(mixed);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], of_input.into());
        let made = [of_conv, of_conv_bias].into_iter().chain(of_heads);
        for (&param, storage) in op.params.iter().zip(made) {
            self.store_leaf(frame.params.index(param), storage, size.dtype);
        }
    }

    /// The ranks that share a sequence, and the stream of their exchanges.
    fn sequence_group(&self) -> (GroupId, StreamId) {
        let context = self.framework.megatron().and_then(|megatron| megatron.context);
        let context = context.expect("called where ranks share a sequence");
        context.heads.map_or((context.ring.group, context.ring.messages[0]), |heads| (heads.group, heads.stream))
    }

    fn ordered(&mut self, bytes: u64, forward: bool) -> Storage {
        if forward {
            return self.made("aten.cat", bytes, bytes, self.settings.forward);
        }
        let copy = self.temporary(bytes, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        copy
    }

    /// What comes back for a tensor of so many bytes.
    fn exchanged(&mut self, bytes: u64, dtype: DType, forward: bool) -> Storage {
        const NAME: &str = "all_to_all_single";
        let arrived = if forward { self.storage(bytes, NAME) } else { self.temporary(bytes, NAME) };
        let (group, stream) = self.sequence_group();
        self.program.wait_stream(stream, COMPUTE);
        self.program.collective(stream, Comm { kind: Collective::AllToAll, group, bytes: Bytes(bytes), dtype });
        self.program.wait_stream(COMPUTE, stream);
        arrived
    }

    /// All tokens of some heads, from some tokens of all.
    fn tokens_for_heads(&mut self, tokens: u64, m: Mamba2, ranks: u64, (whole, dtype): (u64, DType)) -> Storage {
        let mut arrived = vec![];
        let mut repeated = vec![];
        for (width, repeats) in parts(m, ranks) {
            let bytes = tokens * width * repeats * dtype.bytes();
            if repeats > 1 {
                repeated.push(self.ordered(bytes, true));
            }
            let parted = self.ordered(bytes, true);
            arrived.push(self.exchanged(bytes, dtype, true));
            self.release(parted);
        }
        let joined = self.ordered(whole, true);
        // Parts of the sequence come in the order in which attention shares them.
        let ordered = self.ordered(whole, true);
        for storage in repeated.into_iter().chain(arrived).chain([joined]) {
            self.release(storage);
        }
        ordered
    }

    /// The gradient of that.
    fn heads_for_tokens(
        &mut self,
        tokens: u64,
        m: Mamba2,
        ranks: u64,
        (whole, own, dtype): (u64, u64, DType),
    ) -> Storage {
        let ordered = self.ordered(whole, false);
        let mut made = vec![];
        for (width, repeats) in parts(m, ranks).into_iter().rev() {
            let bytes = tokens * width * repeats * dtype.bytes();
            let packed = self.ordered(bytes, false);
            let arrived = self.exchanged(bytes, dtype, false);
            self.release(packed);
            let mut part = self.ordered(bytes, false);
            self.release(arrived);
            if repeats > 1 {
                let sum = self.ordered(bytes / repeats, false);
                self.release(part);
                part = sum;
            }
            made.push(part);
        }
        let joined = self.ordered(own, false);
        made.into_iter().chain([ordered]).for_each(|storage| self.release(storage));
        joined
    }
}

/// Sizes of a scan whose input says how many tokens it is over.
fn sizes(graph: &Graph, op: &Op, m: Mamba2) -> Sizes {
    let value = &graph.values[op.inputs[0]];
    let sequences = graph.dims.b;
    Sizes::of([sequences, value.elements / (m.projected() * sequences)], value.dtype, m)
}
