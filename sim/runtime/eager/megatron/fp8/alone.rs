//! Transformer Engine's `Linear` in fp8 in a model that says nothing of micro-batches (`transformer_engine/pytorch/module/linear.py`,
//! 0.10 and before 1.8).

use super::super::super::frame::{Node, Results};
use super::super::super::shape::MatmulShape;
use super::super::super::{Eager, Frame, Storage};
use super::{Copies, SQUARE, Wide};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::{Fp8Recipe, MegatronOp};
use crate::program::{DType, MatmulLayout, MemoryKind, Pass};

/// Workspace of its matmuls on Hopper before 1.8 \[B\] (`base.py`, `get_cublas_workspace_size_bytes`).
pub const WORKSPACE: u64 = 32 << 20;

/// The update of one linear's scales, and bytes of its maxima: 16 steps (Composer 0.16.4, `get_precision_context`).
const UPDATE_ONE: &str = "te.fused_amax_and_scale_update";
const HISTORY_ALONE: u64 = 16 * 3 * 4;

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

impl Eager {
    /// `Linear` of a model that does not say which micro-batch is the first (0.10, `is_first_microbatch` unset): input and
    /// weight are cast and transposed each time, and both transposed copies kept. Its scales' update is one small kernel.
    pub(in super::super) fn fp8_linear(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let linear = Alone::of(graph, op);
        let (recipe, dispatch) = (Fp8Recipe::Delayed, self.settings.forward);
        let saves = results == Results::Save;
        let copies = if saves { Copies::Both } else { Copies::Rows };
        self.pointwise(UPDATE_ONE, MemoryKind::Elementwise, HISTORY_ALONE, HISTORY_ALONE, dispatch);
        let mut input = self.quantised(linear.input(), copies, recipe);
        let mut weight = self.quantised(linear.weight(), copies, recipe);
        let out = self.storage(graph.values[op.outputs[0]].bytes(), "te.generic_gemm");
        let shape = MatmulShape { m: linear.tokens, n: linear.outputs, k: linear.inputs };
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::Forward, dispatch);
        frame.slots[op.outputs[0]] = Some(out);
        let kept: Vec<Storage> = if saves { input.pop().into_iter().chain(weight.pop()).collect() } else { vec![] };
        for storage in input.into_iter().chain(weight) {
            self.release(storage);
        }
        self.keep(frame, results, &kept);
    }

    pub(in super::super) fn fp8_linear_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let linear = Alone::of(graph, op);
        let Alone { inputs, outputs, tokens, dtype } = linear;
        let dispatch = self.settings.backward;
        self.pointwise(UPDATE_ONE, MemoryKind::Elementwise, HISTORY_ALONE, HISTORY_ALONE, dispatch);
        let whole = Wide::own(tokens * outputs * dtype.bytes(), dtype);
        let before = self.program.set_pass(Pass::Backward);
        let held = self.quantised(whole, Copies::Both, Fp8Recipe::Delayed);
        self.program.set_pass(before);
        let bias = op.params.get(1).map(|&param| (param, self.bias_with_cast(tokens, outputs, dtype)));
        let result = self.temporary(tokens * inputs * dtype.bytes(), "te.generic_gemm");
        self.engine_matmul(
            MatmulShape { m: tokens, n: inputs, k: outputs },
            DType::Fp8,
            MatmulLayout::DataGradient,
            dispatch,
        );
        let weight = self.temporary(inputs * outputs * dtype.bytes(), "te.generic_gemm");
        self.engine_matmul(
            MatmulShape { m: outputs, n: inputs, k: tokens },
            DType::Fp8,
            MatmulLayout::WeightGradient,
            dispatch,
        );
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
}
