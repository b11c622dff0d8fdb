//! A linear without a norm in fp8 (`transformer_engine/pytorch/module/linear.py`, `distributed.py`, 2.9): split on its rows, or
//! whole on every rank.

use super::super::super::frame::{Node, Results};
use super::super::super::shape::MatmulShape;
use super::super::super::{Eager, Frame, Storage};
use super::super::column::{Made, reads};
use super::super::products::Sizes;
use super::{Copies, Wide};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::{Fp8, Reads};
use crate::program::{Collective, DType, MatmulLayout};

impl Eager {
    pub(in super::super) fn fp8_column_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        sizes: Sizes,
        fp8: Fp8,
        frame: &mut Frame,
        results: Results,
    ) {
        let (value, gathers) = (&graph.values[op.inputs[0]], reads(op) == Reads::Gathered);
        let own = Wide { parts: gathers, ..Wide::own(value.bytes(), value.dtype) };
        // With one scale the rank's part travels as it lies, and is transposed when all parts are there.
        let columns = results == Results::Save && !fp8.original && (!gathers || fp8.recipe.of_blocks());
        let copies = self.quantised(own, if columns { Copies::all(fp8) } else { Copies::Rows }, fp8.recipe);
        let travels = Self::travels(sizes.read(), sizes.dtype, fp8.recipe);
        let whole = gathers.then(|| self.gathered_now(travels));
        self.renew_weight(sizes.inputs * sizes.outputs, sizes.dtype, fp8);
        let out = self.storage(sizes.made(), "te.generic_gemm");
        let shape = MatmulShape { m: sizes.tokens, n: sizes.outputs, k: sizes.inputs };
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::Forward, self.settings.forward);
        whole.into_iter().for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        self.keep_input(op, fp8, frame, results, copies);
    }

    pub(in super::super) fn fp8_column_linear_backward(
        &mut self,
        node: Node<'_>,
        sizes: Sizes,
        fp8: Fp8,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let reads = reads(op);
        let (dtype, dispatch, gathers) = (sizes.dtype, self.settings.backward, reads == Reads::Gathered);
        let value = &graph.values[op.inputs[0]];
        let mut held = self.quantised(Wide::own(sizes.made(), dtype), Copies::all(fp8), fp8.recipe);
        let own = Wide { parts: gathers, ..Wide::own(value.bytes(), value.dtype) };
        let saved = frame.saved[Self::saved(frame, index).0];
        held.extend(self.kept_input(saved, own, fp8));
        let travels = Self::travels(sizes.read(), dtype, fp8.recipe);
        let whole = gathers.then(|| self.temporary(travels.bytes, "all_gather_into_tensor"));
        if gathers {
            self.begin_exchange(Collective::AllGather, travels.bytes, travels.dtype);
        }
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        let shape = MatmulShape { m: sizes.tokens, n: sizes.inputs, k: sizes.outputs };
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::DataGradient, dispatch);
        if reads == Reads::Copied {
            self.begin_exchange(Collective::AllReduce, sizes.read(), dtype);
        }
        let part: Option<Storage> = whole.map(|whole| {
            self.end_exchange();
            let part = self.temporary(value.bytes(), "reduce_scatter_tensor");
            self.begin_exchange(Collective::ReduceScatter, sizes.read(), dtype);
            held.extend(self.turn_gathered(whole, travels.bytes, fp8));
            part
        });
        let weight = self.engine_weight_gradient(sizes, dispatch, &held);
        held.into_iter().for_each(|storage| self.release(storage));
        let made = Made { weight, whole: result, part: part.unwrap_or(result) };
        self.end_column_backward(node, sizes, frame, gradient, made);
    }
}
