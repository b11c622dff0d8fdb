//! Transformer Engine's linears in fp8 (`transformer_engine/pytorch/module/layernorm_linear.py`, `linear.py`, `base.py`,
//! `fp8.py`, 2.2 to 2.5).
//!
//! Hopper multiplies fp8 with both operands along their rows only, so each tensor is needed as it lies for one matmul and
//! transposed for another. What is gathered is quantised first, except under blockwise scaling; results, and what is
//! reduced and scattered, are in the type of the activations.

use super::super::forward::Results;
use super::super::{Eager, Frame, Storage};
use super::engine::{Sizes, statistics};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::{Bias, Fp8, Fp8Recipe, MegatronOp};
use crate::program::{Category, Collective, Comm, DType, Dispatch, GroupId, MatmulLayout, MemoryKind, Pass, StreamId};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// Numbers that share a scale under blockwise scaling, of activations and of weights.
const ROW: u64 = 128;
const SQUARE: u64 = 128 * 128;

/// Steps whose maxima delayed scaling looks at (`amax_history_len` as NeMo sets it; Transformer Engine's own default).
pub const HISTORY: u64 = 1024;

/// Tensors of a linear that have a scale: input, weight and result in forward, gradients of result and input in backward
/// (`fp8.py`, `RecipeState`).
pub const SCALED: [u64; 2] = [3, 2];

/// Workspace of its matmuls on Hopper before 1.8 \[B\] (`base.py`, `get_cublas_workspace_size_bytes`).
pub const WORKSPACE: u64 = 32 << 20;

/// The update of one linear's scales, and bytes of its maxima: 16 steps (Composer 0.16.4, `get_precision_context`).
const UPDATE_ONE: &str = "te.fused_amax_and_scale_update";
const HISTORY_ALONE: u64 = 16 * 3 * 4;

/// Rows that one block of the kernel sums for a bias (`common/transpose/cast_transpose_fusion.cu`).
const ROWS_OF_A_SUM: u64 = 128;

/// The maxima of all linears of a rank, reduced at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maxima {
    /// Over whom, and on which stream; none: there is one rank.
    pub over: Option<(GroupId, StreamId)>,
    /// Linears of all chunks of the rank.
    pub linears: u64,
}

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

/// A tensor to be quantised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide {
    pub(super) elements: u64,
    /// Bytes an element.
    size: u64,
    /// Numbers that share a scale under blockwise scaling.
    block: u64,
    /// Whether ranks hold parts of it that must share a scale.
    parts: bool,
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

/// A linear of one rank's, outside Megatron.
#[derive(Clone, Copy, Debug)]
struct Alone {
    inputs: u64,
    outputs: u64,
    tokens: u64,
    dtype: DType,
}

impl Alone {
    fn of(graph: &Graph, op: &Op) -> Alone {
        let OpKind::Megatron(MegatronOp::EngineLinear { inputs, outputs }) = op.kind else {
            unreachable!("called for Transformer Engine's linears alone")
        };
        let value = &graph.values[op.inputs[0]];
        Alone { inputs, outputs, tokens: value.elements / inputs, dtype: value.dtype }
    }

    fn input(self) -> Wide {
        Wide::own(self.tokens * self.inputs * self.dtype.bytes(), self.dtype)
    }

    fn weight(self) -> Wide {
        Wide { elements: self.inputs * self.outputs, size: self.dtype.bytes(), block: SQUARE, parts: false }
    }
}

fn copy(elements: u64, recipe: Fp8Recipe, block: u64) -> u64 {
    match recipe {
        Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => elements,
        Fp8Recipe::Blockwise => elements + elements / block * DType::Fp32.bytes(),
    }
}

/// Bytes of one fp8 copy of a weight, scales included.
pub fn weight_copy(elements: u64, recipe: Fp8Recipe) -> u64 {
    copy(elements, recipe, SQUARE)
}

impl Eager {
    fn in_backward(&self) -> bool {
        self.program.pass() == Pass::Backward
    }

    /// A new block of the pass at hand.
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
            (_, Copies::Rows) => ("te.cast", 1),
            (_, Copies::Columns | Copies::Both) => ("te.cast_transpose", 2),
        };
        self.pointwise(name, MemoryKind::Elementwise, read, made * wide.copy(recipe), dispatch);
    }

    /// The copies of a tensor, as it lies first.
    fn quantised(&mut self, wide: Wide, copies: Copies, recipe: Fp8Recipe) -> Vec<Storage> {
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
    pub(super) fn renew_weight(&mut self, (elements, dtype): (u64, DType), fp8: Fp8) {
        if !self.fresh_weights {
            return;
        }
        if fp8.parameters {
            let copy = weight_copy(elements, fp8.recipe);
            self.pointwise("te.fp8_transpose", MemoryKind::Elementwise, copy, copy, self.settings.forward);
        } else {
            let wide = Wide { elements, size: dtype.bytes(), block: SQUARE, parts: false };
            self.quantise(wide, Copies::Both, fp8.recipe);
        }
    }

    /// What is gathered of a tensor of `bytes` in all: its type, and its bytes.
    fn travels(bytes: u64, dtype: DType, recipe: Fp8Recipe) -> (DType, u64) {
        match recipe {
            Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => (DType::Fp8, bytes / dtype.bytes()),
            Fp8Recipe::Blockwise => (dtype, bytes),
        }
    }

    /// A gathered tensor that what follows waits for.
    fn gathered_now(&mut self, (dtype, bytes): (DType, u64)) -> Storage {
        let whole = self.of_pass(bytes, "all_gather_into_tensor");
        self.exchange_now(Collective::AllGather, bytes, dtype);
        whole
    }

    pub(super) fn fp8_norm_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        (kind, fp8): (MegatronOp, Fp8),
        frame: &mut Frame,
        results: Results,
    ) {
        let MegatronOp::NormLinear { norms, .. } = kind else { unreachable!("called for norms before linears") };
        let (sizes, recipe) = (Sizes::of(graph, op, kind), fp8.recipe);
        let value = &graph.values[op.inputs[0]];
        let own = Wide { parts: sizes.sequence, ..Wide::own(value.bytes(), value.dtype) };
        let (rows, statistics) = (graph.dims.local_tokens(), statistics(norms));
        // Without backward nobody multiplies by the transposed copy.
        let both = if results == Results::Save && !sizes.sequence { Copies::Both } else { Copies::Rows };
        let (numbers, mut normed) = if recipe == Fp8Recipe::Delayed {
            // The norm's kernel writes fp8.
            const NAME: &str = "te.norm_fwd";
            let numbers: Vec<Storage> = (0..statistics).map(|_| self.storage(rows * 4, NAME)).collect();
            let mut made = vec![self.storage(own.elements, NAME)];
            self.pointwise(NAME, MemoryKind::Norm, value.bytes(), own.elements, self.settings.forward);
            if both == Copies::Both {
                made.push(self.transposed(own.elements));
            }
            (numbers, made)
        } else {
            let (numbers, wide) = self.normalised(value, rows, statistics);
            if recipe == Fp8Recipe::Blockwise && sizes.sequence {
                (numbers, vec![wide])
            } else {
                let made = self.quantised(own, both, recipe);
                self.release(wide);
                (numbers, made)
            }
        };
        self.renew_weight((sizes.inputs * sizes.outputs, sizes.dtype), fp8);
        let travels = Self::travels(sizes.read(), sizes.dtype, recipe);
        let mut gathered = vec![];
        if sizes.sequence && !sizes.overlap {
            gathered.push(self.gathered_now(travels));
            if recipe == Fp8Recipe::Blockwise {
                let whole = self.quantised(Wide::own(sizes.read(), sizes.dtype), Copies::Rows, recipe);
                gathered.extend(whole);
            }
        }
        let out = self.storage(sizes.made(), "te.generic_gemm");
        let shape = (sizes.tokens, sizes.outputs, sizes.inputs);
        let dispatch = self.settings.forward;
        if sizes.overlap {
            let parts = super::overlap::Parts { dtype: travels.0, ..sizes.exchange(travels.1) };
            self.gather_beside(shape, MatmulLayout::Forward, parts, dispatch);
        } else {
            self.engine_matmul(shape, DType::Fp8, MatmulLayout::Forward, dispatch);
        }
        for storage in gathered {
            self.release(storage);
        }
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

    /// The gradient of a bias, summed as the gradient of the result is cast and transposed.
    fn bias_beside_cast(&mut self, (tokens, outputs): (u64, u64), dtype: DType) -> Storage {
        const NAME: &str = "te.reduce_dbias";
        let written = outputs * dtype.bytes();
        let made = self.temporary(written, NAME);
        let partial = tokens.div_ceil(ROWS_OF_A_SUM) * outputs * DType::Fp32.bytes();
        self.pointwise(NAME, MemoryKind::Elementwise, partial, written, Dispatch::Extra);
        made
    }

    pub(super) fn fp8_norm_linear_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        (index, kind, fp8): (usize, MegatronOp, Fp8),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let MegatronOp::NormLinear { norms, bias, .. } = kind else { unreachable!("called for norms before linears") };
        let (sizes, recipe) = (Sizes::of(graph, op, kind), fp8.recipe);
        let (dtype, dispatch) = (sizes.dtype, self.settings.backward);
        let mut held = self.quantised(Wide::own(sizes.made(), dtype), Copies::Both, recipe);
        let sum = (bias == Bias::Added).then(|| match recipe {
            Fp8Recipe::Delayed => self.bias_beside_cast((sizes.tokens, sizes.outputs), sizes.dtype),
            _ => self.sum_rows(sizes.tokens, sizes.outputs, dtype),
        });
        let travels = Self::travels(sizes.read(), dtype, recipe);
        if sizes.sequence {
            if !sizes.overlap {
                held.push(self.temporary(travels.1, "all_gather_into_tensor"));
            }
            self.begin_exchange(Collective::AllGather, travels.1, travels.0);
        }
        let whole = (!sizes.overlap).then(|| self.temporary(sizes.read(), "te.generic_gemm"));
        let shape = (sizes.tokens, sizes.inputs, sizes.outputs);
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::DataGradient, dispatch);
        let value = &graph.values[op.inputs[0]];
        let mut part = None;
        if sizes.sequence {
            self.end_exchange();
            part = Some(self.temporary(value.bytes(), "reduce_scatter_tensor"));
            self.begin_exchange(Collective::ReduceScatter, sizes.read(), dtype);
            if recipe == Fp8Recipe::Blockwise {
                held.extend(self.quantised(Wide::own(sizes.read(), dtype), Copies::Columns, recipe));
            } else {
                held.push(self.transposed(travels.1));
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
            self.end_exchange();
        }
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
        (sizes, fp8): (Sizes, Fp8),
        frame: &mut Frame,
        results: Results,
    ) {
        let copies = if results == Results::Save { Copies::Both } else { Copies::Rows };
        let mut input = self.quantised(Wide::own(sizes.read(), sizes.dtype), copies, fp8.recipe);
        self.renew_weight((sizes.inputs * sizes.outputs, sizes.dtype), fp8);
        let (shape, dispatch) = ((sizes.tokens, sizes.outputs, sizes.inputs), self.settings.forward);
        let bytes = graph.values[op.outputs[0]].bytes();
        let out = if sizes.overlap {
            let part = self.storage(bytes, "te.generic_gemm");
            self.scatter_beside(shape, sizes.exchange(sizes.made()), dispatch);
            part
        } else {
            let whole = self.storage(sizes.made(), "te.generic_gemm");
            self.engine_matmul(shape, DType::Fp8, MatmulLayout::Forward, dispatch);
            self.summed(whole, bytes, sizes)
        };
        frame.slots[op.outputs[0]] = Some(out);
        let kept = input.pop().expect("a quantised tensor has a copy");
        for storage in input {
            self.release(storage);
        }
        self.keep(frame, results, &[kept]);
    }

    pub(super) fn fp8_row_linear_backward(
        &mut self,
        op: &Op,
        (index, sizes, fp8): (usize, Sizes, Fp8),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let (recipe, dispatch) = (fp8.recipe, self.settings.backward);
        let whole = Wide::own(sizes.made(), sizes.dtype);
        let travels = Self::travels(sizes.made(), sizes.dtype, recipe);
        let scaled = recipe != Fp8Recipe::Blockwise;
        let mut held = vec![];
        if !sizes.sequence {
            held.extend(self.quantised(whole, Copies::Both, recipe));
        } else {
            if scaled {
                let part = Wide { parts: true, ..Wide::own(self.bytes(gradient), sizes.dtype) };
                held.extend(self.quantised(part, Copies::Rows, recipe));
            }
            if !sizes.overlap {
                held.push(self.gathered_now(travels));
                if scaled {
                    held.push(self.transposed(travels.1));
                } else {
                    held.extend(self.quantised(whole, Copies::Both, recipe));
                }
            }
        }
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        let shape = (sizes.tokens, sizes.inputs, sizes.outputs);
        let layout = MatmulLayout::DataGradient;
        if sizes.overlap {
            let parts = super::overlap::Parts { dtype: travels.0, ..sizes.exchange(travels.1) };
            self.gather_beside(shape, layout, parts, dispatch);
            held.push(self.transposed(travels.1));
        } else {
            self.engine_matmul(shape, DType::Fp8, layout, dispatch);
        }
        held.push(self.retain(frame.saved[Self::saved(frame, index).0]));
        let weight = self.engine_weight_gradient(sizes, dispatch, &held);
        for storage in held {
            self.release(storage);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        self.store_engine_weight(frame.params.index(op.params[0]), weight, sizes);
    }

    /// `Linear` of a model that does not say which micro-batch is the first (0.10, `is_first_microbatch` unset): input and
    /// weight are cast and transposed each time, and both transposed copies kept. Its scales' update is one small kernel.
    pub(super) fn fp8_linear(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let linear = Alone::of(graph, op);
        let (recipe, dispatch) = (Fp8Recipe::Delayed, self.settings.forward);
        let saves = results == Results::Save;
        let copies = if saves { Copies::Both } else { Copies::Rows };
        self.pointwise(UPDATE_ONE, MemoryKind::Elementwise, HISTORY_ALONE, HISTORY_ALONE, dispatch);
        let mut input = self.quantised(linear.input(), copies, recipe);
        let mut weight = self.quantised(linear.weight(), copies, recipe);
        let out = self.storage(graph.values[op.outputs[0]].bytes(), "te.generic_gemm");
        let shape = (linear.tokens, linear.outputs, linear.inputs);
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::Forward, dispatch);
        frame.slots[op.outputs[0]] = Some(out);
        let kept: Vec<Storage> = if saves { input.pop().into_iter().chain(weight.pop()).collect() } else { vec![] };
        for storage in input.into_iter().chain(weight) {
            self.release(storage);
        }
        self.keep(frame, results, &kept);
    }

    pub(super) fn fp8_linear_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        index: usize,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let linear = Alone::of(graph, op);
        let Alone { inputs, outputs, tokens, dtype } = linear;
        let dispatch = self.settings.backward;
        self.pointwise(UPDATE_ONE, MemoryKind::Elementwise, HISTORY_ALONE, HISTORY_ALONE, dispatch);
        let whole = Wide::own(tokens * outputs * dtype.bytes(), dtype);
        let before = self.program.set_pass(Pass::Backward);
        let held = self.quantised(whole, Copies::Both, Fp8Recipe::Delayed);
        self.program.set_pass(before);
        let bias = op.params.get(1).map(|&param| (param, self.bias_beside_cast((tokens, outputs), dtype)));
        let result = self.temporary(tokens * inputs * dtype.bytes(), "te.generic_gemm");
        self.engine_matmul((tokens, inputs, outputs), DType::Fp8, MatmulLayout::DataGradient, dispatch);
        let weight = self.temporary(inputs * outputs * dtype.bytes(), "te.generic_gemm");
        self.engine_matmul((outputs, inputs, tokens), DType::Fp8, MatmulLayout::WeightGradient, dispatch);
        for storage in held {
            self.release(storage);
        }
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        for (param, made) in bias.into_iter().chain([(op.params[0], weight)]) {
            let param = frame.params.index(param);
            let (made, dtype) = self.upcast(param, made, dtype);
            self.store_leaf(param, made, dtype);
        }
    }

    /// Under delayed scaling, at the end of a chunk's forward, and of its backward: the maxima of all linears of the rank
    /// are gathered in one tensor, reduced over ranks, and become scales in one kernel
    /// (`fp8.py`, `reduce_and_update_fp8_tensors`).
    pub fn reduce_maxima(&mut self) {
        let Some(Maxima { over, linears }) = self.maxima else { return };
        let backward = self.in_backward();
        let numbers = linears * SCALED[usize::from(backward)];
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
