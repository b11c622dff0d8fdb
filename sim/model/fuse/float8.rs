//! Linears in 8-bit floats, as torchao swaps them in (`torchao/float8/float8_linear.py`, 0.7 to 0.18), inside a compiled
//! module.
//!
//! Each of the three matmuls of a linear multiplies two tensors in fp8 with their scales (`torch._scaled_mm`); inputs and
//! weights are E4M3, gradients of results E5M2, results bf16. Only the forward accumulates fast. The kernel takes its first
//! operand by rows and its second by columns, so backward casts each of input, weight and gradient once more, transposed.
//!
//! - `tensorwise`: one scale a tensor: the largest magnitude (a pass over the tensor, and a small kernel over partial
//!   maxima), then a cast (a second pass). Inductor takes the maximum in the kernel that makes a value, if it is one of its
//!   own, and casts in both directions in one kernel (PyTorch 2.15's `loop_ordering_after_fusion`).
//! - `rowwise`: a scale a row, found and applied in one kernel; a scale a column for the transposed casts, whose maximum
//!   is a column reduction of its own. Backward's matmuls run with one scale, and their results are multiplied by the
//!   scales after.
//!
//! Under tensor parallelism a tensorwise maximum is that of all ranks (an all-reduce of one number), and what is gathered is
//! cast before (`float8_tensor_parallel.py`). Under FSDP a weight that was gathered in fp8 needs no cast, only the
//! transposed copy. Held against inductor (PyTorch 2.15, torchao 0.18) in `tests/oracle/float8.rs`.

mod casts;

pub(super) use casts::{Casts, Side};
pub use casts::{Float8, MULTIPLE, Recipe};

use super::compiled::{Launch, TensorId};
use super::nodes::{Joint, Kind};
use crate::model::graph::{Graph, OpKind, ParamId};
use crate::program::{Collective, DType, MatmulLayout, MemoryKind, Work};
use casts::Cast;

/// Partial maxima of a reduction over a whole tensor.
const PARTIALS: u64 = 512;
/// Rows that one thread block of a column reduction takes in its first pass.
const ROWS_PER_PARTIAL: u64 = 128;

impl Joint {
    fn push_to(&mut self, side: Side, name: &'static str, kind: Kind, operands: (&[TensorId], &[TensorId]), at: usize) {
        let space = operands.0.iter().map(|&tensor| self.tensors[tensor].elements).max().unwrap_or(0);
        self.push_over(side, name, kind, operands, (at, space));
    }

    /// The largest magnitude of a tensor, as a scale.
    fn scale(&mut self, side: Side, graph: &Graph, x: TensorId, at: usize) -> TensorId {
        if let Some(&(_, scale)) = self.casts.scales.iter().find(|(of, _)| *of == x) {
            return scale;
        }
        let partial = self.tensor("partial maxima", PARTIALS, PARTIALS * 4);
        self.push_to(side, "triton_red_max", Kind::Rows(MemoryKind::Norm), (&[x], &[partial]), at);
        let mut scale = self.tensor("scale", 1, 4);
        let kind = || Kind::Rows(MemoryKind::Elementwise);
        self.push_to(side, "triton_per_max", kind(), (&[partial], &[scale]), at);
        self.scales.push(scale);
        if graph.dims.tensor.splits() {
            let of_all = self.tensor("scale", 1, 4);
            let exchange = Launch::Exchange { kind: Collective::AllReduce, bytes: 4, dtype: DType::Fp32 };
            self.push_to(side, "all_reduce", Kind::Extern(exchange), (&[scale], &[of_all]), at);
            scale = of_all;
        }
        self.casts.scales.push((x, scale));
        scale
    }

    /// A tensor of `shape` in fp8, by rows or by columns.
    fn cast(
        &mut self,
        side: Side,
        graph: &Graph,
        (x, shape): (TensorId, (u64, u64)),
        columns: bool,
        at: usize,
    ) -> Cast {
        if self.casts.narrow.contains(&x) && !columns {
            return Cast { data: x, scales: None };
        }
        if let Some((_, cast)) = self.casts.made.iter().find(|(of, _)| *of == (x, columns)) {
            return *cast;
        }
        let elements = self.tensors[x].elements;
        let reads = match self.recipe() {
            _ if self.casts.narrow.contains(&x) => vec![x],
            Recipe::Tensorwise => vec![x, self.scale(side, graph, x, at)],
            Recipe::Rowwise => vec![x, self.axis_scale(side, (x, shape), columns, at)],
        };
        let data = self.tensor("fp8", elements, elements);
        let kind = Kind::Point(MemoryKind::Elementwise);
        self.push_to(side, "triton_cast_fp8", kind, (&reads, &[data]), at);
        let scales = (self.recipe() == Recipe::Rowwise).then(|| reads[1]);
        let cast = Cast { data, scales };
        self.casts.made.push(((x, columns), cast));
        cast
    }

    /// A scale for each row, or each column.
    fn axis_scale(
        &mut self,
        side: Side,
        (x, (rows, width)): (TensorId, (u64, u64)),
        columns: bool,
        at: usize,
    ) -> TensorId {
        if !columns {
            let scales = self.tensor("row scales", rows, rows * 4);
            self.push_to(side, "triton_red_max", Kind::Rows(MemoryKind::Norm), (&[x], &[scales]), at);
            return scales;
        }
        let partials = rows.div_ceil(ROWS_PER_PARTIAL) * width;
        let partial = self.tensor("partial maxima", partials, 4 * partials);
        self.push_to(side, "triton_red_max", Kind::Columns(MemoryKind::Elementwise), (&[x], &[partial]), at);
        let scales = self.tensor("column scales", width, width * 4);
        let kind = Kind::Rows(MemoryKind::Elementwise);
        self.push_to(side, "triton_per_max", kind, (&[partial], &[scales]), at);
        scales
    }

    /// A weight as FSDP leaves it: in fp8, or to be cast.
    fn weight(&mut self, param: ParamId, elements: u64, dtype: DType, gathered: bool) -> TensorId {
        if let Some(&(_, tensor)) = self.casts.weights.iter().find(|(known, _)| *known == param) {
            return tensor;
        }
        let size = if gathered { 1 } else { dtype.bytes() };
        let tensor = self.tensor("weight", elements, elements * size);
        self.casts.weights.push((param, tensor));
        if gathered {
            self.casts.narrow.push(tensor);
        }
        tensor
    }

    fn recipe(&self) -> Recipe {
        self.float8.map_or(Recipe::Tensorwise, |float8| float8.recipe)
    }

    /// Whether what is exchanged before a linear is cast first.
    pub(super) fn casts_before_gather(&self) -> bool {
        self.float8.is_some_and(|float8| float8.recipe == Recipe::Tensorwise)
    }

    /// A tensor in fp8 before it is gathered.
    pub(super) fn cast_to_gather(&mut self, side: Side, graph: &Graph, x: TensorId, at: usize) -> TensorId {
        let width = graph.dims.d;
        let shape = (self.tensors[x].elements / width, width);
        self.cast(side, graph, (x, shape), false, at).data
    }

    /// Says that a tensor holds fp8 numbers.
    pub(super) fn is_narrow(&mut self, tensor: TensorId) {
        self.casts.narrow.push(tensor);
    }

    /// The sizes of a linear that is swapped.
    pub(super) fn swapped(&self, graph: &Graph, at: usize) -> Option<(Float8, u64, u64)> {
        let OpKind::Linear { inputs, outputs } = graph.ops[at].kind else { return None };
        self.float8.filter(|_| Float8::takes(inputs, outputs)).map(|float8| (float8, inputs, outputs))
    }

    /// `y = x·Wᵀ` in fp8.
    pub(super) fn float8_linear(&mut self, graph: &Graph, at: usize, (x, out): (TensorId, TensorId)) {
        let Some((float8, inputs, outputs)) = self.swapped(graph, at) else { return };
        let (op, tokens) = (&graph.ops[at], graph.dims.tokens());
        let dtype = graph.values[op.inputs[0]].dtype;
        let weight = self.weight(op.params[0], inputs * outputs, dtype, float8.all_gather);
        let x = self.cast(Side::Forward, graph, (x, (tokens, inputs)), false, at);
        let weight = self.cast(Side::Forward, graph, (weight, (outputs, inputs)), false, at);
        let (m, layout) = (tokens, MatmulLayout::Forward);
        let work = Work::Matmul { m, n: outputs, k: inputs, dtype: DType::Fp8, layout };
        let kind = Kind::Extern(Launch::Matmul(work));
        self.push_to(Side::Forward, "extern_kernels._scaled_mm", kind, (&[x.data, weight.data], &[out]), at);
    }

    /// Its backward: the weight's gradient, and the input's as `result`.
    pub(super) fn float8_linear_backward(
        &mut self,
        graph: &Graph,
        at: usize,
        (gradient, x): (TensorId, TensorId),
        (weight_gradient, result): (TensorId, TensorId),
    ) {
        let Some((float8, inputs, outputs)) = self.swapped(graph, at) else { return };
        let (op, tokens, side) = (&graph.ops[at], graph.dims.tokens(), Side::Backward);
        let dtype = graph.values[op.inputs[0]].dtype;
        let matmul =
            |m, n, k, layout| Kind::Extern(Launch::Matmul(Work::Matmul { m, n, k, dtype: DType::Fp8, layout }));
        let by_rows = self.cast(side, graph, (gradient, (tokens, outputs)), false, at);
        let by_columns = self.cast(side, graph, (gradient, (tokens, outputs)), true, at);
        let x = self.cast(side, graph, (x, (tokens, inputs)), true, at);
        let kind = matmul(outputs, inputs, tokens, MatmulLayout::WeightGradient);
        self.scaled_gradient(kind, [by_columns, x], weight_gradient, at);
        let weight = self.weight(op.params[0], inputs * outputs, dtype, float8.all_gather);
        let weight = self.cast(side, graph, (weight, (outputs, inputs)), true, at);
        let kind = matmul(tokens, inputs, outputs, MatmulLayout::DataGradient);
        self.scaled_gradient(kind, [by_rows, weight], result, at);
    }

    /// A gradient's matmul. The kernel that takes a scale a row is slow without fast accumulation, so torchao runs that of
    /// one scale and multiplies its result by the scales (`float8_ops.py`, `addmm_float8_unwrapped`).
    fn scaled_gradient(&mut self, kind: Kind, [a, b]: [Cast; 2], result: TensorId, at: usize) {
        let (side, name) = (Side::Backward, "extern_kernels._scaled_mm");
        let (Some(rows), Some(columns)) = (a.scales, b.scales) else {
            return self.push_to(side, name, kind, (&[a.data, b.data], &[result]), at);
        };
        let (elements, bytes) = (self.tensors[result].elements, self.tensors[result].bytes);
        let raw = self.tensor("unscaled", elements, bytes);
        self.push_to(side, name, kind, (&[a.data, b.data], &[raw]), at);
        let point = Kind::Point(MemoryKind::Elementwise);
        self.push_to(side, "triton_mul", point, (&[raw, rows, columns], &[result]), at);
    }
}
