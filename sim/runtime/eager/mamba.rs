//! Mamba-2's scan in one function: convolution, scan by chunks, gated norm and output projection, as mamba_ssm runs them.
//!
//! What is allocated and kept follows `mamba_split_conv1d_scan_combined` (mamba_ssm 2.3.2, `mamba_ssm/ops/triton/ssd_combined.py`
//! and the kernels beside it). It keeps what the first projection made, the scan's result and a number per row and group of the norm.
//! Backward runs the convolution and the scan of states again. Triton kernels are bounded by memory: their products have at most
//! a chunk's or a state's length.

use super::frame::{Frame, Node, Results};
use super::shape::MatmulShape;
use super::{Eager, Storage};
use crate::model::Mamba2;
use crate::model::graph::{Graph, Op};
use crate::program::{DType, MatmulLayout, MemoryKind};

/// Width of the blocks that the kernels leave partial sums for.
const PART: u64 = 32;
/// Numbers of state that one program of the kernel over chunks' states passes on.
const STATE_PART: u64 = 64;

pub(super) const CONV: &str = "causal_conv1d_fwd_kernel";
pub(super) const CONV_BACKWARD: &str = "causal_conv1d_bwd_kernel";
const CUMSUM: &str = "_chunk_cumsum_fwd_kernel";
const STATE: &str = "_chunk_state_fwd_kernel";
const PASS: &str = "_state_passing_fwd_kernel";
const PRODUCTS: &str = "_bmm_chunk_fwd_kernel";
pub(super) const SCAN: &str = "_chunk_scan_fwd_kernel";
pub(super) const NORM: &str = "_layer_norm_fwd_1pass_kernel";
const BACKWARD: &str = "_chunk_scan_chunk_state_bwd_dx_kernel";
const DECAYS: &str = "_chunk_scan_bwd_ddAcs_stable_kernel";
const STATES_BACKWARD: &str = "_chunk_scan_bwd_dstates_kernel";
const B_BACKWARD: &str = "_chunk_state_bwd_db_kernel";
const C_BACKWARD: &str = "_chunk_scan_bwd_dc_kernel";
const PRODUCTS_BACKWARD: &str = "_chunk_scan_bwd_dcb_kernel";
pub(super) const NORM_BACKWARD: &str = "_layer_norm_bwd_kernel";

/// The family of a kernel.
fn family(name: &str) -> MemoryKind {
    match name {
        SCAN | BACKWARD | DECAYS => MemoryKind::ChunkScan,
        STATE | STATES_BACKWARD | B_BACKWARD | C_BACKWARD | PRODUCTS_BACKWARD => MemoryKind::ChunkState,
        NORM_BACKWARD => MemoryKind::GatedNormBackward,
        _ => MemoryKind::Norm,
    }
}

/// Sizes of the scan's tensors \[B\].
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Tokens.
    pub(super) tokens: u64,
    /// Element type of what comes in.
    pub(super) dtype: DType,
    /// What the first projection made.
    pub(super) projected: u64,
    /// x, or what the scan makes of it.
    pub(super) inner: u64,
    /// x, B and C.
    pub(super) channels: u64,
    /// B, or C.
    pub(super) group: u64,
    /// dt, as the projection made it.
    pub(super) dt: u64,
    /// One fp32 number for each head and token, in whole chunks.
    pub(super) head_tokens: u64,
    /// States of all chunks in fp32.
    pub(super) states: u64,
    /// States at the end in fp32.
    pub(super) last: u64,
    /// Products of B and C within chunks, in fp32.
    pub(super) products: u64,
    /// Chunks of all sequences.
    pub(super) chunks: u64,
}

impl Sizes {
    fn new(graph: &Graph, op: &Op, m: Mamba2) -> Sizes {
        Sizes::of([graph.dims.b, graph.dims.s], graph.values[op.inputs[0]].dtype, m)
    }

    /// Of so many sequences of so many tokens.
    pub(super) fn of([sequences, length]: [u64; 2], dtype: DType, m: Mamba2) -> Sizes {
        let (tokens, element) = (sequences * length, dtype.bytes());
        let chunks = sequences * length.div_ceil(m.chunk);
        let state = m.inner() * m.state;
        Sizes {
            tokens,
            dtype,
            projected: tokens * m.projected() * element,
            inner: tokens * m.inner() * element,
            channels: tokens * m.channels() * element,
            group: tokens * m.groups * m.state * element,
            dt: tokens * m.heads * element,
            head_tokens: 4 * chunks * m.heads * m.chunk,
            states: 4 * chunks * state,
            last: 4 * sequences * state,
            products: 4 * chunks * m.groups * m.chunk * m.chunk,
            chunks,
        }
    }
}

/// What the scan's first kernels make, which backward makes again.
pub(super) struct Start {
    pub(super) steps: [Storage; 2],
    pub(super) states: Storage,
    pub(super) last: Storage,
    pub(super) products: Storage,
}

impl Eager {
    /// Runs it; what it keeps beside its input: the scan's result, the norm's numbers, and A before and after its sign.
    pub(super) fn mamba(&mut self, graph: &Graph, op: &Op, m: Mamba2, frame: &mut Frame, results: Results) {
        let (size, dispatch) = (Sizes::new(graph, op, m), self.settings.forward);
        let wide = self.storage(4 * m.heads, "aten._to_copy");
        self.scan_kernel("aten._to_copy", (4 * m.heads, 4 * m.heads), true);
        let rate = self.storage(4 * m.heads, "aten.exp");
        self.scan_kernel("aten.exp", (4 * m.heads, 4 * m.heads), true);
        self.release(wide);
        let decay = self.storage(4 * m.heads, "aten.neg");
        self.scan_kernel("aten.neg", (4 * m.heads, 4 * m.heads), true);

        let mixed = self.storage(size.channels, CONV);
        self.scan_kernel(CONV, (size.channels, size.channels), true);
        let start = self.scan_states(size, true, Self::storage);
        let scanned = self.storage(size.inner, SCAN);
        let read = size.inner + size.states / 4 * size.dtype.bytes() + size.products + size.group;
        self.scan_kernel(SCAN, (read, size.inner), true);
        self.release(start.products);
        let normed = self.storage(size.inner, NORM);
        let numbers = self.storage(4 * m.groups * size.tokens, NORM);
        self.scan_kernel(NORM, (2 * size.inner, size.inner), true);
        let output = self.storage(graph.values[op.outputs[0]].bytes(), "aten.mm");
        frame.slots[op.outputs[0]] = Some(output);
        let shape = MatmulShape { m: size.tokens, n: graph.dims.d, k: m.inner() };
        self.matmul("aten.mm", shape, size.dtype, MatmulLayout::Forward, dispatch);
        for storage in [normed, start.last, start.states, start.steps[1], start.steps[0], mixed] {
            self.release(storage);
        }
        let kept = [scanned, numbers, decay, rate];
        if results == Results::Save {
            self.save_own(op, frame, op.row().saves);
            frame.saved.extend(kept);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            kept.into_iter().for_each(|storage| self.release(storage));
        }
    }

    /// Steps, states of chunks, states passed on, products within chunks. Forward passes states on in the inputs' type, backward in fp32.
    pub(super) fn scan_states(
        &mut self,
        size: Sizes,
        forward: bool,
        take: fn(&mut Self, u64, &'static str) -> Storage,
    ) -> Start {
        let steps = [take(self, size.head_tokens, CUMSUM), take(self, size.head_tokens, CUMSUM)];
        self.scan_kernel(CUMSUM, (size.dt, 2 * size.head_tokens), forward);
        let products = |this: &mut Self| {
            let made = take(this, size.products, PRODUCTS);
            this.scan_kernel(PRODUCTS, (2 * size.group, size.products), forward);
            made
        };
        // Backward makes the products first.
        let early = (!forward).then(|| products(self));
        let each = take(self, size.states, STATE);
        self.scan_kernel(STATE, (size.inner + size.group + 2 * size.head_tokens, size.states), forward);
        let element = if forward { size.dtype.bytes() } else { 4 };
        let states = take(self, size.states / 4 * element, PASS);
        let last = take(self, size.last, PASS);
        self.scan_kernel(PASS, (size.states, size.states / 4 * element), forward);
        self.release(each);
        let products = early.unwrap_or_else(|| products(self));
        Start { steps, states, last, products }
    }

    /// A Triton kernel that moves so many bytes.
    pub(super) fn scan_kernel(&mut self, name: &'static str, (read, written): (u64, u64), forward: bool) {
        let dispatch = if forward { self.settings.forward } else { self.settings.backward };
        self.pointwise(name, family(name), read, written, dispatch);
    }

    /// Gradients of what the first projection made, and of seven or eight parameters.
    pub(super) fn mamba_backward(&mut self, node: Node<'_>, m: Mamba2, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (size, dispatch) = (Sizes::new(graph, op, m), self.settings.backward);
        let (d, element) = (graph.dims.d, size.dtype.bytes());
        let normed = self.temporary(size.inner, "aten.empty");
        let mixed = self.temporary(size.channels, CONV);
        self.scan_kernel(CONV, (size.channels, size.channels), false);
        let of_input = self.temporary(size.projected, "aten.empty_like");
        let of_channels = self.temporary(size.channels, "aten.empty_like");
        let of_normed = self.temporary(size.inner, "aten.mm");
        let shape = MatmulShape { m: size.tokens, n: m.inner(), k: d };
        self.matmul("aten.mm", shape, size.dtype, MatmulLayout::DataGradient, dispatch);
        let of_scanned = self.temporary(size.inner, NORM_BACKWARD);
        let of_norm = self.temporary(m.inner() * element, NORM_BACKWARD);
        self.scan_kernel(NORM_BACKWARD, (3 * size.inner, 3 * size.inner), false);

        let of_decays = self.scan_backward(size, m, false);

        let of_output = self.temporary(d * m.inner() * element, "aten.mm");
        let shape = MatmulShape { m: d, n: m.inner(), k: size.tokens };
        self.matmul("aten.mm", shape, size.dtype, MatmulLayout::WeightGradient, dispatch);
        let of_conv = self.temporary(m.channels() * m.conv * element, CONV_BACKWARD);
        let of_conv_bias = m.conv_bias.then(|| self.temporary(m.channels() * element, CONV_BACKWARD));
        self.scan_kernel(CONV_BACKWARD, (2 * size.channels, size.channels), false);
        for storage in [of_scanned, of_normed, of_channels, mixed, normed] {
            self.release(storage);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], of_input.into());
        let of_heads = of_decays.into_iter().map(Some);
        let made = [Some(of_conv), of_conv_bias].into_iter().chain(of_heads).chain([Some(of_norm), Some(of_output)]);
        for (&param, storage) in op.params.iter().zip(made.flatten()) {
            let param = frame.params.index(param);
            let (storage, dtype) = self.upcast(param, storage, size.dtype);
            self.store_leaf(param, storage, dtype);
        }
    }

    /// The scan's own backward: gradients of dt's bias, A and D are left, the others are written in place. One whose result is `gated` makes
    /// the gradient before the gate first, and D's from that.
    pub(super) fn scan_backward(&mut self, size: Sizes, m: Mamba2, gated: bool) -> [Storage; 3] {
        let narrow = size.states / 4 * size.dtype.bytes();
        let dt = self.temporary(size.dt, "aten.clone");
        self.scan_kernel("aten.clone", (size.dt, size.dt), false);
        let start = self.scan_states(size, false, Self::temporary);
        let before_gate = gated.then(|| self.scan_gate_backward(size, m));
        let of_states = self.temporary(size.states, STATES_BACKWARD);
        self.scan_kernel(STATES_BACKWARD, (size.inner + size.group, size.states), false);
        let pass = "_state_passing_bwd_kernel";
        let (of_passed, passed) = (self.temporary(narrow, pass), self.temporary(narrow, pass));
        let parts = 4 * size.chunks * m.heads * (m.head_dim * m.state).div_ceil(STATE_PART);
        let of_rates = self.temporary(parts, pass);
        self.scan_kernel(pass, (2 * size.states, 2 * narrow + parts), false);
        self.release(of_states);
        self.release(start.states);

        let name = BACKWARD;
        let blocks = m.chunk.div_ceil(PART) * m.head_dim.div_ceil(PART);
        let of_skip_parts = self.temporary(4 * size.chunks * m.heads * blocks, name);
        let of_steps = self.temporary(size.head_tokens, name);
        self.scan_kernel(name, (2 * size.inner + size.group + size.products + narrow, size.inner), false);
        let of_skip = self.temporary(m.heads * size.dtype.bytes(), "aten.sum");
        self.scan_kernel("aten.sum", (4 * size.chunks * m.heads * blocks, 4 * m.heads), false);
        self.release(of_skip_parts);

        // B's and C's gradients are sums over a group's heads, which several programs make parts of.
        let ratio = m.heads / m.groups.max(1);
        let each = (size.chunks * m.heads).div_ceil(u64::from(self.settings.sms).max(1)).min(ratio).max(1);
        let splits = ratio.div_ceil(each);
        let whole = size.group / size.dtype.bytes() * 4;
        let summed = |this: &mut Self, name: &'static str, read: u64, bytes: u64| {
            let parts = this.temporary(splits * bytes, name);
            let of_rates = this.temporary(size.head_tokens, name);
            this.scan_kernel(name, (read, splits * bytes), false);
            let sum = this.temporary(bytes, "aten.sum");
            this.scan_kernel("aten.sum", (splits * bytes, bytes), false);
            this.release(parts);
            (sum, of_rates)
        };
        let (of_b, next) = summed(self, B_BACKWARD, size.inner + narrow, whole);
        let (of_c, before) = summed(self, C_BACKWARD, size.inner + narrow, whole);
        let name = PRODUCTS_BACKWARD;
        let parts = self.temporary(splits * size.products, name);
        self.scan_kernel(name, (2 * size.inner, splits * size.products), false);
        let of_products = self.temporary(size.products, "aten.sum");
        self.scan_kernel("aten.sum", (splits * size.products, size.products), false);
        self.release(parts);
        for _ in 0..2 {
            self.scan_kernel("_bmm_chunk_bwd_kernel", (size.products + size.group + whole, size.group), false);
        }
        let flipped = ["aten.flip", "aten.cumsum", "aten.flip"].map(|name| {
            let made = self.temporary(size.head_tokens, name);
            self.scan_kernel(name, (size.head_tokens, size.head_tokens), false);
            made
        });
        self.release(flipped[0]);
        self.release(flipped[1]);
        let name = DECAYS;
        let parts = self.temporary(m.chunk.div_ceil(PART) * size.head_tokens, name);
        self.scan_kernel(name, (2 * size.inner + size.products, m.chunk.div_ceil(PART) * size.head_tokens), false);
        let of_sums = self.temporary(size.head_tokens, "aten.sum");
        self.release(parts);
        let both = self.temporary(size.head_tokens, "aten.add");
        self.scan_kernel("aten.add", (2 * size.head_tokens, size.head_tokens), false);
        self.release(both);
        let of_bias = self.temporary(m.heads * size.dtype.bytes(), "_chunk_cumsum_bwd_kernel");
        let of_decay = self.temporary(m.heads * size.dtype.bytes(), "_chunk_cumsum_bwd_kernel");
        self.scan_kernel("_chunk_cumsum_bwd_kernel", (2 * size.head_tokens + size.dt, size.dt), false);
        let gone = [of_sums, flipped[2], of_products, before, of_c, next, of_b, of_steps, of_rates, passed, of_passed];
        let rest = [start.last, start.products, start.steps[1], start.steps[0], dt];
        gone.into_iter().chain(rest).for_each(|storage| self.release(storage));
        let Some([of_scanned, of_skip_before]) = before_gate else { return [of_bias, of_decay, of_skip] };
        self.release(of_scanned);
        self.release(of_skip);
        [of_bias, of_decay, of_skip_before]
    }

    /// The gradients of what the scan made before its gate, and of D; the gate's own is written in place.
    fn scan_gate_backward(&mut self, size: Sizes, m: Mamba2) -> [Storage; 2] {
        const NAME: &str = "_chunk_scan_bwd_dz_kernel";
        let parts = 4 * size.chunks * m.heads * m.chunk.div_ceil(PART);
        let of_skip_parts = self.temporary(parts, NAME);
        let of_scanned = self.temporary(size.inner, NAME);
        self.scan_kernel(NAME, (4 * size.inner, 2 * size.inner + parts), false);
        let of_skip = self.temporary(m.heads * size.dtype.bytes(), "aten.sum");
        self.scan_kernel("aten.sum", (parts, 4 * m.heads), false);
        self.release(of_skip_parts);
        [of_scanned, of_skip]
    }
}
