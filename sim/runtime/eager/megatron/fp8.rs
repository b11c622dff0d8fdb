//! Transformer Engine's linears in fp8 (`transformer_engine/pytorch/module/layernorm_linear.py`, `linear.py`, `base.py`,
//! `distributed.py`, `quantization.py`, 2.9).
//!
//! Hopper multiplies fp8 with both operands along their rows only, so each tensor is needed as it lies for one matmul and
//! transposed for another; Blackwell multiplies whichever way they lie. What is gathered is quantised first; results, and what is reduced and scattered, are in the type of
//! the activations.

mod alone;
mod column;

use super::super::frame::{Node, Results};
use super::super::shape::Exchanged;
use super::super::{Eager, Frame, Storage};
use super::products::{Sizes, statistics};
use crate::model::graph::{Graph, Op, Value};
use crate::model::megatron::{Bias, Fp8, Fp8Recipe, MegatronOp};
use crate::program::{Category, Collective, Comm, DType, Dispatch, MemoryKind, Pass};
use crate::runtime::eager::{COMPUTE, Maxima};
use crate::units::Bytes;

/// Numbers that share a scale under blockwise scaling, of activations and of weights.
const ROW: u64 = 128;
const SQUARE: u64 = 128 * 128;

/// Numbers that share a scale of one byte under MXFP8 (OCP Microscaling Formats, 1.0).
const MICROSCALED: u64 = 32;

/// Steps whose maxima delayed scaling looks at (`amax_history_len` as NeMo sets it; Transformer Engine's own default).
pub const HISTORY: u64 = 1024;

/// Tensors of a linear that have a scale: input, weight and result in forward, gradients of result and input in backward
/// (`quantization.py`, `RecipeState`).
pub const SCALED: [u64; 2] = [3, 2];

/// Products that attention's module has scales for, though it multiplies in the type of the activations
/// (`attention/dot_product_attention/dot_product_attention.py`, `prepare_forward`).
pub const OF_ATTENTION: u64 = 3;

/// Rows that one thread block sums for a bias (`common/transpose/cast_transpose_fusion.cu`).
const ROWS_OF_A_SUM: u64 = 128;

pub use alone::WORKSPACE;

/// Which copies of a tensor are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// As it lies.
    Rows,
    /// Transposed.
    Columns,
    /// Both, in one kernel.
    Both,
}

impl Copies {
    /// All that matmuls of forward and backward read.
    pub(super) fn all(fp8: Fp8) -> Copies {
        if fp8.has_columns() { Copies::Both } else { Copies::Rows }
    }
}

/// A tensor to be quantised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide {
    pub(super) elements: u64,
    /// Bytes an element.
    pub(super) size: u64,
    /// Numbers that share a scale under blockwise scaling.
    pub(super) block: u64,
    /// Whether ranks hold parts of it that must share a scale.
    pub(super) parts: bool,
}

impl Wide {
    /// An activation or a gradient that the rank has all of.
    pub(super) fn own(bytes: u64, dtype: DType) -> Wide {
        Wide { elements: bytes / dtype.bytes(), size: dtype.bytes(), block: ROW, parts: false }
    }

    /// Bytes of one copy, scales included.
    pub(super) fn copy(&self, recipe: Fp8Recipe) -> u64 {
        copy(self.elements, recipe, self.block)
    }
}

fn copy(elements: u64, recipe: Fp8Recipe, block: u64) -> u64 {
    match recipe {
        Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => elements,
        Fp8Recipe::Blockwise => elements + elements / block * DType::Fp32.bytes(),
        Fp8Recipe::Mxfp8 => elements + elements / MICROSCALED,
    }
}

/// Bytes of one fp8 copy of a weight, scales included.
fn weight_copy(elements: u64, recipe: Fp8Recipe) -> u64 {
    copy(elements, recipe, SQUARE)
}

/// The storages it lies in: numbers, and scales where it has many \[B\].
pub fn weight_blocks(elements: u64, recipe: Fp8Recipe) -> impl Iterator<Item = u64> {
    [elements, weight_copy(elements, recipe) - elements].into_iter().filter(|&bytes| bytes > 0)
}

impl Eager {
    fn in_backward(&self) -> bool {
        self.program.pass() == Pass::Backward
    }

    /// A new storage of the pass at hand.
    pub(super) fn of_pass(&mut self, bytes: u64, name: &'static str) -> Storage {
        let category = if self.in_backward() { Category::BackwardTemporary } else { self.category };
        self.storage_as(bytes, category, name)
    }

    pub(super) fn dispatch_of_pass(&self) -> Dispatch {
        if self.in_backward() { self.settings.backward } else { self.settings.forward }
    }

    /// The kernels that quantise a tensor.
    fn quantise(&mut self, wide: Wide, copies: Copies, recipe: Fp8Recipe) {
        self.quantise_by(wide, copies, recipe, self.dispatch_of_pass());
    }

    pub(super) fn quantise_by(&mut self, wide: Wide, copies: Copies, recipe: Fp8Recipe, mut dispatch: Dispatch) {
        let read = wide.elements * wide.size;
        if recipe == Fp8Recipe::Tensorwise {
            self.pointwise("te.compute_amax", MemoryKind::Elementwise, read, 4, dispatch);
            if wide.parts {
                self.exchange_now(Collective::AllReduce, 4, DType::Fp32);
            }
            self.pointwise("te.compute_scale", MemoryKind::Elementwise, 4, 4, Dispatch::Extra);
            dispatch = Dispatch::Extra;
        }
        let (name, made) = match (recipe, copies) {
            (Fp8Recipe::Blockwise, Copies::Both) => ("te.block_quantize", 2),
            (Fp8Recipe::Blockwise, _) => ("te.block_quantize", 1),
            (Fp8Recipe::Mxfp8, Copies::Both) => ("te.mxfp8_quantize", 2),
            (Fp8Recipe::Mxfp8, _) => ("te.mxfp8_quantize", 1),
            (_, Copies::Rows) => ("te.cast", 1),
            (_, Copies::Columns | Copies::Both) => ("te.cast_transpose", 2),
        };
        self.pointwise(name, MemoryKind::Elementwise, read, made * wide.copy(recipe), dispatch);
    }

    /// The copies of a tensor, as it lies first.
    pub(super) fn quantised(&mut self, wide: Wide, copies: Copies, recipe: Fp8Recipe) -> Vec<Storage> {
        let count = if copies == Copies::Both { 2 } else { 1 };
        let made = (0..count).map(|_| self.of_pass(wide.copy(recipe), "te.quantize")).collect();
        self.quantise(wide, copies, recipe);
        made
    }

    /// A transposed copy of an fp8 tensor.
    fn transposed(&mut self, elements: u64) -> Storage {
        const NAME: &str = "te.fp8_transpose";
        let made = self.of_pass(elements, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, elements, elements, self.dispatch_of_pass());
        made
    }

    /// After the optimizer's step the fp8 copies of a weight are made anew, where the last ones lie.
    pub(super) fn renew_weight(&mut self, elements: u64, dtype: DType, fp8: Fp8) {
        if !self.framework.megatron().is_some_and(|megatron| megatron.fp8.fresh_weights) {
            return;
        }
        if fp8.parameters && !fp8.gathers_wide() {
            if !fp8.has_columns() {
                return;
            }
            let copy = weight_copy(elements, fp8.recipe);
            self.pointwise("te.fp8_transpose", MemoryKind::Elementwise, copy, copy, self.settings.forward);
        } else {
            let wide = Wide { elements, size: dtype.bytes(), block: SQUARE, parts: false };
            self.quantise(wide, Copies::all(fp8), fp8.recipe);
        }
    }

    /// What is gathered of a tensor of `bytes` in all: fp8, and its bytes with the scales of its blocks.
    pub(super) fn travels(bytes: u64, dtype: DType, recipe: Fp8Recipe) -> Exchanged {
        Exchanged { bytes: Wide::own(bytes, dtype).copy(recipe), dtype: DType::Fp8 }
    }

    /// A gathered tensor that what follows waits for.
    pub(super) fn gathered_now(&mut self, Exchanged { bytes, dtype }: Exchanged) -> Storage {
        let whole = self.of_pass(bytes, "all_gather_into_tensor");
        self.exchange_now(Collective::AllGather, bytes, dtype);
        whole
    }

    /// The transposed copy of a gathered tensor. One scale serves both; under blockwise scaling what was gathered is a copy for
    /// this alone, and given back (`distributed.py`, `_post_process_fp8_blockwise_gather`).
    fn turn_gathered(&mut self, gathered: Storage, bytes: u64, fp8: Fp8) -> Vec<Storage> {
        if !fp8.has_columns() {
            return vec![gathered];
        }
        let turned = self.transposed(bytes);
        if fp8.recipe.of_blocks() {
            self.release(gathered);
            return vec![turned];
        }
        vec![gathered, turned]
    }

    /// A norm whose kernel writes fp8: its statistics, and its result.
    pub(super) fn norm_to_fp8(
        &mut self,
        value: &Value,
        rows: u64,
        statistics: usize,
        elements: u64,
    ) -> (Vec<Storage>, Vec<Storage>) {
        const NAME: &str = "te.norm_fwd";
        let numbers: Vec<Storage> = (0..statistics).map(|_| self.storage(rows * 4, NAME)).collect();
        let made = vec![self.storage(elements, NAME)];
        self.pointwise(NAME, MemoryKind::Norm, value.bytes(), elements, self.settings.forward);
        (numbers, made)
    }

    pub(super) fn fp8_norm_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        fp8: Fp8,
        frame: &mut Frame,
        results: Results,
    ) {
        let MegatronOp::NormLinear { norms, .. } = kind else { unreachable!("called for norms before linears") };
        let (sizes, recipe) = (Sizes::of(graph, op, kind).in_pass(results), fp8.recipe);
        let value = &graph.values[op.inputs[0]];
        let own = Wide { parts: sizes.sequence, ..Wide::own(value.bytes(), value.dtype) };
        let (rows, statistics) = (graph.dims.local_tokens(), statistics(norms));
        // Without backward nobody multiplies by the transposed copy.
        let columns = !sizes.sequence || recipe.of_blocks();
        let both = if results == Results::Save && columns { Copies::all(fp8) } else { Copies::Rows };
        let (numbers, mut normed) = if recipe == Fp8Recipe::Delayed {
            let (numbers, mut made) = self.norm_to_fp8(value, rows, statistics, own.elements);
            if both == Copies::Both {
                made.push(self.transposed(own.elements));
            }
            (numbers, made)
        } else {
            let (numbers, wide) = self.normalised(value, rows, statistics);
            let made = self.quantised(own, both, recipe);
            self.release(wide);
            (numbers, made)
        };
        self.renew_weight(sizes.inputs * sizes.outputs, sizes.dtype, fp8);
        let travels = Self::travels(sizes.read(), sizes.dtype, recipe);
        let gathered = (sizes.sequence && !sizes.overlap).then(|| self.gathered_now(travels));
        let out = self.storage(sizes.made(), "te.generic_gemm");
        let product = sizes.forward(self.settings.forward);
        if sizes.overlap {
            self.gather_overlapped(product, travels);
        } else {
            self.engine_product(product);
        }
        gathered.into_iter().for_each(|storage| self.release(storage));
        // What the weight's gradient is made from: the transposed copy, or the rank's part.
        let kept = normed.pop().expect("a norm has a result");
        for storage in normed {
            self.release(storage);
        }
        frame.slots[op.outputs[0]] = Some(out);
        let mut saved = vec![self.retain(Self::value(frame, op.inputs[0])), kept];
        saved.extend(numbers);
        self.keep(frame, results, &saved);
    }

    /// The gradient of a bias beside the gradient of the result: summed as that is quantised where a kernel does both
    /// (`csrc/extensions/bias.cpp`, `bgrad_quantize`), else before it.
    pub(super) fn bias_of_quantised(&mut self, tokens: u64, outputs: u64, dtype: DType, recipe: Fp8Recipe) -> Storage {
        match recipe {
            Fp8Recipe::Delayed | Fp8Recipe::Mxfp8 => self.bias_with_cast(tokens, outputs, dtype),
            _ => self.sum_rows(tokens, outputs, dtype),
        }
    }

    /// The gradient of a bias, summed as the gradient of the result is cast and transposed.
    pub(super) fn bias_with_cast(&mut self, tokens: u64, outputs: u64, dtype: DType) -> Storage {
        const NAME: &str = "te.reduce_dbias";
        let written = outputs * dtype.bytes();
        let made = self.temporary(written, NAME);
        let partial = tokens.div_ceil(ROWS_OF_A_SUM) * outputs * DType::Fp32.bytes();
        self.pointwise(NAME, MemoryKind::Elementwise, partial, written, Dispatch::Extra);
        made
    }

    pub(super) fn fp8_norm_linear_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        fp8: Fp8,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let MegatronOp::NormLinear { norms, bias, .. } = kind else { unreachable!("called for norms before linears") };
        let (sizes, recipe) = (Sizes::of(graph, op, kind), fp8.recipe);
        let (dtype, dispatch) = (sizes.dtype, self.settings.backward);
        let mut held = self.quantised(Wide::own(sizes.made(), dtype), Copies::all(fp8), recipe);
        let sum = (bias == Bias::Added).then(|| match recipe {
            Fp8Recipe::Delayed => self.bias_with_cast(sizes.tokens, sizes.outputs, sizes.dtype),
            _ => self.sum_rows(sizes.tokens, sizes.outputs, dtype),
        });
        let travels = Self::travels(sizes.read(), dtype, recipe);
        let gathered =
            (sizes.sequence && !sizes.overlap).then(|| self.temporary(travels.bytes, "all_gather_into_tensor"));
        if sizes.sequence {
            self.begin_overlapped(sizes, Collective::AllGather, travels);
        }
        let whole = (!sizes.overlap).then(|| self.temporary(sizes.read(), "te.generic_gemm"));
        self.product_overlapped(sizes, sizes.data_gradient(dispatch));
        let value = &graph.values[op.inputs[0]];
        let mut part = None;
        if sizes.sequence {
            self.end_overlapped(sizes);
            match gathered {
                // In bulk what is scattered is given to the next matmul's call.
                None => {
                    held.extend(fp8.has_columns().then(|| self.transposed(travels.bytes)));
                    self.begin_overlapped(sizes, Collective::ReduceScatter, sizes.whole_input());
                }
                Some(gathered) => {
                    part = Some(self.temporary(value.bytes(), "reduce_scatter_tensor"));
                    self.begin_overlapped(sizes, Collective::ReduceScatter, sizes.whole_input());
                    held.extend(self.turn_gathered(gathered, travels.bytes, fp8));
                }
            }
        } else if sizes.splits {
            self.begin_exchange(Collective::AllReduce, sizes.read(), dtype);
        }
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].to_vec();
        held.push(saved[1]);
        let weight = self.engine_weight_gradient(sizes, dispatch, &held);
        for storage in held {
            self.release(storage);
        }
        if sizes.splits {
            self.end_overlapped(sizes);
        }
        let part = part.or_else(|| self.clone_out(sizes, value.bytes()));
        let (result, made) = self.norm_gradients(value, graph.dims.local_tokens(), norms);
        for &storage in part.iter().chain(&saved[2..]).chain(&whole).chain([&gradient, &saved[0]]) {
            self.release(storage);
        }
        self.accumulate(frame, op.inputs[0], result.into());
        for (&param, storage) in op.params.iter().zip(made) {
            self.store_leaf(frame.params.index(param), storage, dtype);
        }
        if let Some(sum) = sum {
            self.store_leaf(frame.params.index(op.params[norms + 1]), sum, dtype);
        }
        self.store_engine_weight(frame.params.index(op.params[norms]), weight, sizes);
    }

    pub(super) fn fp8_row_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        sizes: Sizes,
        fp8: Fp8,
        frame: &mut Frame,
        results: Results,
    ) {
        let copies = if results == Results::Save && !fp8.original { Copies::all(fp8) } else { Copies::Rows };
        let input = self.quantised(Wide::own(sizes.read(), sizes.dtype), copies, fp8.recipe);
        self.renew_weight(sizes.inputs * sizes.outputs, sizes.dtype, fp8);
        let out = self.row_product(sizes, graph.values[op.outputs[0]].bytes());
        frame.slots[op.outputs[0]] = Some(out);
        self.keep_input(op, fp8, frame, results, input);
    }

    /// Keeps the last of the copies of a linear's input, or the input itself.
    fn keep_input(&mut self, op: &Op, fp8: Fp8, frame: &mut Frame, results: Results, mut copies: Vec<Storage>) {
        let kept = if fp8.original { Some(self.retain(Self::value(frame, op.inputs[0]))) } else { copies.pop() };
        copies.into_iter().for_each(|storage| self.release(storage));
        self.keep(frame, results, kept.as_slice());
    }

    /// What the gradient of a linear's weight is made of: what was kept, or copies of it made now.
    fn kept_input(&mut self, saved: Storage, input: Wide, fp8: Fp8) -> Vec<Storage> {
        if !fp8.original {
            return vec![self.retain(saved)];
        }
        let copies = match fp8.recipe {
            Fp8Recipe::Blockwise | Fp8Recipe::Mxfp8 => Copies::Columns,
            _ if input.parts => Copies::Rows,
            _ => Copies::all(fp8),
        };
        self.quantised(input, copies, fp8.recipe)
    }

    pub(super) fn fp8_row_linear_backward(
        &mut self,
        node: Node<'_>,
        sizes: Sizes,
        fp8: Fp8,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { op, index, .. } = node;
        let (recipe, dispatch) = (fp8.recipe, self.settings.backward);
        let whole = Wide::own(sizes.made(), sizes.dtype);
        let travels = Self::travels(sizes.made(), sizes.dtype, recipe);
        let mut held = vec![];
        if !sizes.sequence {
            held = self.quantised(whole, Copies::all(fp8), recipe);
        } else {
            // Under blockwise scaling both copies travel, as one.
            let (copies, ways) = if recipe.of_blocks() { (Copies::Both, 2) } else { (Copies::Rows, 1) };
            let part = Wide { parts: true, ..Wide::own(self.bytes(gradient), sizes.dtype) };
            let part = self.quantised(part, copies, recipe);
            if !sizes.overlap {
                held.extend((0..ways).map(|_| self.of_pass(travels.bytes, "all_gather_into_tensor")));
                self.exchange_now(Collective::AllGather, ways * travels.bytes, travels.dtype);
                let gathered = held.pop().expect("one way at least");
                held.extend(self.turn_gathered(gathered, travels.bytes, fp8));
            }
            part.into_iter().for_each(|storage| self.release(storage));
        }
        let read = Wide::own(sizes.read(), sizes.dtype);
        let saved = frame.saved[Self::saved(frame, index).0];
        held.extend(self.kept_input(saved, read, fp8));
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        let product = sizes.data_gradient(dispatch);
        if sizes.overlap {
            self.gather_overlapped(product, travels);
            held.extend(fp8.has_columns().then(|| self.transposed(travels.bytes)));
        } else {
            self.engine_product(product);
        }
        let weight = self.engine_weight_gradient(sizes.alone(), dispatch, &held);
        for storage in held {
            self.release(storage);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        self.store_engine_weight(frame.params.index(op.params[0]), weight, sizes);
    }

    /// Whether the backward at hand is of a second run by Transformer Engine's checkpoint.
    pub(in crate::runtime::eager) fn second_run(&self) -> bool {
        self.framework.megatron().is_some_and(|megatron| megatron.fp8.second_run)
    }

    /// Under delayed scaling, at the end of a chunk's forward, and of its backward: the maxima of all linears of the rank
    /// are gathered in one tensor, reduced over ranks, and become scales in one kernel
    /// (`quantization.py`, `reduce_and_update_fp8_tensors`).
    pub fn reduce_maxima(&mut self) {
        let maxima = self.framework.megatron().and_then(|megatron| megatron.fp8.maxima);
        let Some(Maxima { over, products }) = maxima else { return };
        let backward = self.in_backward();
        let numbers = products * SCALED[usize::from(backward)];
        let (bytes, dispatch) = (numbers * DType::Fp32.bytes(), self.dispatch_of_pass());
        let flat = self.of_pass(bytes, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, dispatch);
        if let Some((group, stream)) = over {
            self.program.wait_stream(stream, COMPUTE);
            let comm = Comm { kind: Collective::AllReduce, group, bytes: Bytes(bytes), dtype: DType::Fp32 };
            self.program.collective(stream, comm);
            self.program.wait_stream(COMPUTE, stream);
        }
        let history = HISTORY * bytes;
        const UPDATE: &str = "te.fused_amax_and_scale_update_after_reduction";
        self.pointwise(UPDATE, MemoryKind::Elementwise, history, history, dispatch);
        self.release(flat);
    }
}
