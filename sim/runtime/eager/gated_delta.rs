//! A gated DeltaNet between its projections: convolution, decays, the delta rule by chunks, gated norm.
//!
//! What is allocated and kept follows `Qwen3NextGatedDeltaNet.forward` (transformers 5.24.0), `ChunkGatedDeltaRuleFunction` and
//! `LayerNormGatedFunction` (flash-linear-attention 0.6.0, `fla/ops/gated_delta_rule/chunk.py`, `fla/ops/common/chunk_o.py`,
//! `chunk_delta_h.py` and `fla/modules/norm/fused_norm_gate.py`) and `CausalConv1dFn` (causal_conv1d 1.5). Queries and keys are normed
//! in the rule, and their gradients are made for each value head and then added up. Backward makes the chunks' states again.
//! Triton kernels are bounded by memory: their products have at most a chunk's length or a head's.

use super::frame::{Frame, Node, Results};
use super::{Eager, Storage};
use crate::model::GatedDelta;
use crate::model::graph::{Graph, Op};
use crate::program::{DType, MemoryKind};

/// Tokens of a chunk (`chunk_size`).
const CHUNK: u64 = 64;
/// Columns of keys that one program takes in the kernel over all gradients (`CONST_TILING`, Hopper and 16-bit Ampere).
const TILE: u64 = 128;

const CONV: &str = "causal_conv1d_fwd_kernel";
const CONV_BACKWARD: &str = "causal_conv1d_bwd_kernel";
const L2: &str = "l2norm_fwd_kernel";
const L2_BACKWARD: &str = "l2norm_bwd_kernel";
const CUMSUM: &str = "chunk_local_cumsum_scalar_kernel";
const SOLVE: &str = "chunk_gated_delta_rule_fwd_kkt_solve_kernel";
const WY: &str = "recompute_w_u_fwd_kernel";
const WY_BACKWARD: &str = "prepare_wy_repr_bwd_kernel";
const STATES: &str = "chunk_gated_delta_rule_fwd_kernel_h_blockdim64";
const STATES_BACKWARD: &str = "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64";
const OUT: &str = "chunk_fwd_kernel_o";
const VALUES_BACKWARD: &str = "chunk_bwd_kernel_dv_local";
const OUT_BACKWARD: &str = "chunk_bwd_kernel_dqkwg";
const NORM: &str = "layer_norm_gated_fwd_kernel";
const NORM_BACKWARD: &str = "layer_norm_gated_bwd_kernel";

/// Sizes of its tensors \[B\].
#[derive(Clone, Copy)]
struct Sizes {
    /// Tokens.
    tokens: u64,
    /// Element type of what comes in.
    dtype: DType,
    /// What the first projection made.
    wide: u64,
    /// What the second made.
    narrow: u64,
    /// Queries, or keys.
    keys: u64,
    /// Keys, one for each value head.
    each_key: u64,
    /// Values.
    values: u64,
    /// Queries, keys and values.
    channels: u64,
    /// A number for each value head and token.
    heads: u64,
    /// The same in fp32.
    wide_heads: u64,
    /// An fp32 number for each key head and token.
    key_numbers: u64,
    /// An fp32 number for each value head.
    decays: u64,
    /// Products within chunks.
    products: u64,
    /// States before all chunks.
    states: u64,
}

impl Sizes {
    fn new(graph: &Graph, op: &Op, m: GatedDelta) -> Sizes {
        let (d, dtype) = (graph.dims, graph.values[op.inputs[0]].dtype);
        let (tokens, element, heads) = (d.tokens(), dtype.bytes(), m.value_heads);
        Sizes {
            tokens,
            dtype,
            wide: tokens * m.projected() * element,
            narrow: 2 * tokens * heads * element,
            keys: tokens * m.keys() * element,
            each_key: tokens * heads * m.key_dim * element,
            values: tokens * m.values() * element,
            channels: tokens * m.channels() * element,
            heads: tokens * heads * element,
            wide_heads: 4 * tokens * heads,
            key_numbers: 4 * tokens * m.key_heads,
            decays: 4 * heads,
            products: tokens * heads * CHUNK * element,
            states: d.b * d.s.div_ceil(CHUNK) * heads * m.key_dim * m.value_dim * element,
        }
    }

    fn casts(self) -> bool {
        self.dtype != DType::Fp32
    }
}

/// What is kept for backward, in the order in which it is made.
#[derive(Clone, Copy)]
struct Kept {
    /// What the convolution reads.
    joined: Storage,
    /// Of the decays: e to their logarithms, steps before and after softplus, the negative.
    rate: Storage,
    step: Storage,
    soft: Storage,
    negative: Storage,
    /// How much of what is held for a key is corrected.
    beta: Storage,
    /// What the rule keeps.
    rule: [Storage; 7],
    /// What the norm keeps: the rule's result, the gate, what it divided by.
    norm: [Storage; 3],
}

impl Kept {
    fn all(self) -> [Storage; 16] {
        let [query, query_norm, key, key_norm, value, decay, products] = self.rule;
        let [result, gate, divisor] = self.norm;
        let rule = [query, query_norm, key, key_norm, value, decay, products];
        let [a, b, c, d, e, f, g] = rule;
        let Kept { joined, rate, step, soft, negative, beta, .. } = self;
        [joined, rate, step, soft, negative, beta, a, b, c, d, e, f, g, result, gate, divisor]
    }

    fn of([joined, rate, step, soft, negative, beta, rest @ ..]: [Storage; 16]) -> Kept {
        let [a, b, c, d, e, f, g, result, gate, divisor] = rest;
        let (rule, norm) = ([a, b, c, d, e, f, g], [result, gate, divisor]);
        Kept { joined, rate, step, soft, negative, beta, rule, norm }
    }
}

impl Eager {
    /// Runs it. Its results are the normed values and what Python names until the function returns.
    pub(super) fn gated_delta(&mut self, graph: &Graph, op: &Op, m: GatedDelta, frame: &mut Frame, results: Results) {
        let (size, saves) = (Sizes::new(graph, op, m), results == Results::Save);
        let [wide, narrow] = [0, 1].map(|at: usize| frame.slots[op.inputs[at]].expect("an operator reads live values"));
        // Where a key has several value heads, their parts lie apart and are copied out.
        let apart = m.value_heads > m.key_heads;
        let part = |this: &mut Self, bytes, whole| {
            if apart { this.aten("aten.clone", bytes, bytes) } else { this.retain(whole) }
        };
        let early = apart.then(|| self.aten("aten.clone", size.values, size.values));
        let gate = part(self, size.values, wide);
        let (b, a) = (part(self, size.heads, narrow), part(self, size.heads, narrow));
        let [query, key] = [0; 2].map(|_| self.aten("aten.clone", size.keys, size.keys));
        let value = early.unwrap_or_else(|| self.aten("aten.clone", size.values, size.values));
        let joined = self.aten("aten.cat", size.channels, size.channels);
        let mixed = self.triton(CONV, size.channels, size.channels);
        self.unless(saves, &[joined]);
        [query, key, value].into_iter().for_each(|storage| self.release(storage));

        let beta = self.aten("aten.sigmoid", size.heads, size.heads);
        let logarithm = size.casts().then(|| self.aten("aten._to_copy", size.decays, size.decays / 2));
        let rate = self.aten("aten.exp", size.decays, size.decays);
        logarithm.into_iter().for_each(|storage| self.release(storage));
        let negative = self.aten("aten.neg", size.decays, size.decays);
        self.unless(saves, &[rate]);
        let cast = size.casts().then(|| self.aten("aten._to_copy", size.wide_heads, size.heads));
        let step = self.aten("aten.add", size.wide_heads, size.wide_heads);
        cast.into_iter().for_each(|storage| self.release(storage));
        let soft = self.aten("aten.softplus", size.wide_heads, size.wide_heads);
        self.unless(saves, &[step]);
        let decay = self.aten("aten.mul", size.wide_heads, size.wide_heads);
        self.unless(saves, &[negative, soft]);

        let (result, rule) = self.delta_rule(size, saves);
        let gate_read = if apart { self.retain(gate) } else { self.aten("aten.clone", size.values, size.values) };
        let normed = self.triton(NORM, 2 * size.values, size.values);
        let divisor = self.storage(size.wide_heads, NORM);
        if saves {
            let beta = self.retain(beta);
            let kept = Kept { joined, rate, step, soft, negative, beta, rule, norm: [result, gate_read, divisor] };
            frame.saved.extend(kept.all());
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            [divisor, gate_read, result].into_iter().for_each(|storage| self.release(storage));
        }
        for (&value, storage) in op.outputs.iter().zip([normed, gate, b, a, mixed, beta, decay]) {
            frame.slots[value] = Some(storage);
        }
    }

    /// `chunk_gated_delta_rule`: its result, and what it keeps.
    fn delta_rule(&mut self, size: Sizes, saves: bool) -> (Storage, [Storage; 7]) {
        let [query, key] = [0; 2].map(|_| self.aten("aten.clone", size.keys, size.keys));
        let value = self.aten("aten.clone", size.values, size.values);
        let normed = |this: &mut Self| {
            let made = this.triton(L2, size.keys, size.keys);
            (made, this.storage(size.key_numbers, L2))
        };
        let (query_normed, query_norm) = normed(self);
        let (key_normed, key_norm) = normed(self);
        let decay = self.triton(CUMSUM, size.wide_heads, size.wide_heads);
        let products = self.aten("aten.zeros", size.products, 0);
        self.scan_kernel(SOLVE, (size.keys + size.wide_heads + size.heads, size.products), true);
        let (keys, values) = self.wy(size, true);
        let (states, corrected) = self.chunk_states(size, true);
        let result = self.storage(size.values, OUT);
        self.scan_kernel(OUT, (2 * size.keys + size.values + size.states + size.wide_heads, size.values), true);
        for storage in [keys, values, states, corrected, query, key] {
            self.release(storage);
        }
        let kept = [query_normed, query_norm, key_normed, key_norm, value, decay, products];
        self.unless(saves, &kept);
        (result, kept)
    }

    /// Keys and values of all chunks, corrected for each other.
    fn wy(&mut self, size: Sizes, forward: bool) -> (Storage, Storage) {
        let take = if forward { Self::storage } else { Self::temporary };
        let made = (take(self, size.each_key, WY), take(self, size.values, WY));
        let read = size.keys + size.values + size.products + size.wide_heads;
        self.scan_kernel(WY, (read, size.each_key + size.values), forward);
        made
    }

    /// States before all chunks, and what is left of the values.
    fn chunk_states(&mut self, size: Sizes, forward: bool) -> (Storage, Storage) {
        let take = if forward { Self::storage } else { Self::temporary };
        let made = (take(self, size.states, STATES), take(self, size.values, STATES));
        self.scan_kernel(STATES, (size.keys + size.each_key + size.values, size.states + size.values), forward);
        made
    }

    /// An operator of ATen's in forward that makes one tensor.
    fn aten(&mut self, name: &'static str, bytes: u64, read: u64) -> Storage {
        let storage = self.storage(bytes, name);
        self.pointwise(name, MemoryKind::Elementwise, read, bytes, self.settings.forward);
        storage
    }

    /// A Triton kernel in forward that makes one tensor.
    fn triton(&mut self, name: &'static str, read: u64, bytes: u64) -> Storage {
        let storage = self.storage(bytes, name);
        self.scan_kernel(name, (read, bytes), true);
        storage
    }

    /// Lets go of what nothing keeps.
    fn unless(&mut self, saves: bool, storages: &[Storage]) {
        if !saves {
            storages.iter().for_each(|&storage| self.release(storage));
        }
    }

    /// Gradients of what the projections made, and of four parameters.
    pub(super) fn gated_delta_backward(&mut self, node: Node<'_>, m: GatedDelta, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let size = Sizes::new(graph, op, m);
        let kept = Kept::of(Self::saved_by(frame, index));
        let again = frame.checkpoint.is_some();
        let [conv, decay, bias, norm] = [0, 1, 2, 3].map(|at: usize| frame.params.index(op.params[at]));

        let of_result = self.temporary(size.values, NORM_BACKWARD);
        let of_gate = self.temporary(size.values, NORM_BACKWARD);
        let parts = u64::from(self.settings.sms).min(size.tokens * m.value_heads);
        let of_weights = self.temporary(4 * parts * m.value_dim, NORM_BACKWARD);
        self.scan_kernel(NORM_BACKWARD, (3 * size.values, 2 * size.values), false);
        let sum = self.sum_rows(parts, m.value_dim, DType::Fp32);
        let of_weight = self.cast_gradient(sum, DType::Fp32, size.dtype);
        self.release(of_weights);
        self.passed(again, gradient, &kept.norm, (norm, of_weight, size.dtype));

        let [of_query, of_key, of_value, of_decay, of_beta] = self.delta_rule_backward(size, m);
        self.gone(again, of_result, &kept.rule);

        let of_a = self.decays_backward(size, (again, m.value_heads), kept, of_decay, [decay, bias]);
        let of_b = self.pointwise_gradient("aten.sigmoid_backward", size.heads, 2 * size.heads);
        self.gone(again, of_beta, &[kept.beta]);

        let of_mixed = self.pointwise_gradient("aten.cat", size.channels, size.channels);
        [of_query, of_key, of_value].into_iter().for_each(|storage| self.release(storage));
        let of_joined = self.temporary(size.channels, CONV_BACKWARD);
        let numbers = m.channels() * m.conv;
        let of_conv = self.temporary(4 * numbers, "aten.zeros");
        self.pointwise("aten.zeros", MemoryKind::Copy, 0, 4 * numbers, self.settings.backward);
        self.scan_kernel(CONV_BACKWARD, (2 * size.channels, size.channels), false);
        if size.casts() {
            let cast = self.pointwise_gradient("aten._to_copy", numbers * size.dtype.bytes(), 4 * numbers);
            if again {
                self.release(kept.joined);
            }
            self.release(of_conv);
            self.stored((conv, cast, size.dtype));
            self.release(of_mixed);
            if !again {
                self.release(kept.joined);
            }
        } else {
            self.passed(again, of_mixed, &[kept.joined], (conv, of_conv, size.dtype));
        }
        let of_narrow = self.pointwise_gradient("aten.cat", size.narrow, size.narrow);
        self.release(of_a);
        self.release(of_b);
        let of_wide = self.pointwise_gradient("aten.cat", size.wide, size.wide);
        self.release(of_joined);
        self.release(of_gate);
        self.accumulate(frame, op.inputs[1], of_narrow.into());
        self.accumulate(frame, op.inputs[0], of_wide.into());
    }

    /// Lets go of what a node received and what it kept; what it kept goes first where it was made again.
    fn gone(&mut self, again: bool, gradient: Storage, kept: &[Storage]) {
        if !again {
            self.release(gradient);
        }
        kept.iter().for_each(|&storage| self.release(storage));
        if again {
            self.release(gradient);
        }
    }

    /// The same, of a node whose parameter's gradient is stored.
    fn passed(
        &mut self,
        again: bool,
        gradient: Storage,
        kept: &[Storage],
        (param, made, dtype): (usize, Storage, DType),
    ) {
        if again {
            kept.iter().for_each(|&storage| self.release(storage));
        }
        let (made, dtype) = self.upcast(param, made, dtype);
        self.gone(again, gradient, if again { &[] } else { kept });
        self.store_leaf(param, made, dtype);
    }

    fn stored(&mut self, (param, made, dtype): (usize, Storage, DType)) {
        let (made, dtype) = self.upcast(param, made, dtype);
        self.store_leaf(param, made, dtype);
    }

    /// Gradients of queries, keys, values, decays and betas.
    fn delta_rule_backward(&mut self, size: Sizes, m: GatedDelta) -> [Storage; 5] {
        let (again_keys, again_values) = self.wy(size, false);
        let (states, corrected) = self.chunk_states(size, false);
        let local = self.temporary(size.values, VALUES_BACKWARD);
        self.scan_kernel(VALUES_BACKWARD, (2 * size.keys + size.values, size.values), false);
        let of_states = self.temporary(size.states, STATES_BACKWARD);
        let of_corrected = self.temporary(size.values, STATES_BACKWARD);
        let read = 2 * size.keys + size.each_key + 2 * size.values;
        self.scan_kernel(STATES_BACKWARD, (read, size.states + size.values), false);
        self.release(local);

        let tiles = m.key_dim.div_ceil(m.key_dim.next_power_of_two().clamp(16, TILE));
        let each = [0; 2].map(|_| self.temporary(size.each_key, OUT_BACKWARD));
        let of_decays = self.temporary(tiles * size.wide_heads, OUT_BACKWARD);
        let of_keys = self.temporary(size.each_key, OUT_BACKWARD);
        let read = 2 * size.keys + 3 * size.values + 2 * size.states + size.each_key;
        self.scan_kernel(OUT_BACKWARD, (read, 3 * size.each_key + tiles * size.wide_heads), false);
        let [of_query, of_key] = each.map(|each| self.by_key_head(size, m, each));
        let of_decay = self.pointwise_gradient("aten.sum", size.wide_heads, tiles * size.wide_heads);
        self.release(of_decays);

        let more = self.temporary(size.each_key, WY_BACKWARD);
        let of_value = self.temporary(size.values, WY_BACKWARD);
        let more_decay = self.temporary(size.wide_heads, WY_BACKWARD);
        let of_beta = self.temporary(size.heads, WY_BACKWARD);
        let read = size.keys + 2 * size.values + size.each_key + size.products;
        self.scan_kernel(WY_BACKWARD, (read, size.each_key + size.values), false);
        let more_key = self.by_key_head(size, m, more);
        self.release(of_corrected);
        for bytes in [size.keys, size.wide_heads] {
            self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        }
        let summed = self.temporary(size.wide_heads, CUMSUM);
        self.scan_kernel(CUMSUM, (size.wide_heads, size.wide_heads), false);
        self.release(of_decay);
        for storage in [again_keys, again_values, states, corrected, of_states, of_keys, more_key, more_decay] {
            self.release(storage);
        }
        let [of_query, of_key] = [of_query, of_key].map(|normed| {
            let raw = self.temporary(size.keys, L2_BACKWARD);
            self.scan_kernel(L2_BACKWARD, (2 * size.keys, size.keys), false);
            self.release(normed);
            raw
        });
        [of_query, of_key, of_value, summed, of_beta]
    }

    /// The sum over the value heads that share a key head, where several do.
    fn by_key_head(&mut self, size: Sizes, m: GatedDelta, each: Storage) -> Storage {
        if m.value_heads == m.key_heads {
            return each;
        }
        let sum = self.pointwise_gradient("aten.sum", size.keys, size.each_key);
        self.release(each);
        sum
    }

    /// From the gradient of `−exp(A) · softplus(a + bias)` to that of `a`; those of A and of the bias are stored.
    fn decays_backward(
        &mut self,
        size: Sizes,
        (again, heads): (bool, u64),
        kept: Kept,
        gradient: Storage,
        [decay, bias]: [usize; 2],
    ) -> Storage {
        let bytes = size.wide_heads;
        let of_soft = self.pointwise_gradient("aten.mul", bytes, bytes);
        let product = self.pointwise_gradient("aten.mul", bytes, 2 * bytes);
        if again {
            self.release(kept.negative);
            self.release(kept.soft);
        }
        let of_negative = self.sum_rows(size.tokens, heads, DType::Fp32);
        self.release(product);
        self.release(gradient);
        if !again {
            self.release(kept.soft);
            self.release(kept.negative);
        }
        let of_step = self.pointwise_gradient("aten.softplus_backward", bytes, 2 * bytes);
        self.gone(again, of_soft, &[kept.step]);
        let of_bias = self.sum_rows(size.tokens, heads, DType::Fp32);
        let of_bias = self.cast_gradient(of_bias, DType::Fp32, size.dtype);
        self.stored((bias, of_bias, size.dtype));
        let of_a = self.cast_gradient(of_step, DType::Fp32, size.dtype);
        let of_rate = self.pointwise_gradient("aten.neg", size.decays, size.decays);
        self.release(of_negative);
        let of_logarithm = self.pointwise_gradient("aten.mul", size.decays, 2 * size.decays);
        self.gone(again, of_rate, &[kept.rate]);
        let of_logarithm = self.cast_gradient(of_logarithm, DType::Fp32, size.dtype);
        self.stored((decay, of_logarithm, size.dtype));
        of_a
    }
}
