//! A linear without a norm in fp8 (`transformer_engine/pytorch/module/linear.py`, `distributed.py`, 2.9): split on its rows, or
//! whole on every rank.

use super::super::super::frame::Results;
use super::super::super::{Eager, Frame, Storage};
use super::super::products::Sizes;
use super::{Copies, Wide};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::{Fp8, Fp8Recipe, Reads};
use crate::program::{Collective, DType, MatmulLayout};

impl Eager {
    pub(in super::super) fn fp8_column_linear(
        &mut self,
        graph: &Graph,
        op: &Op,
        (sizes, reads, fp8): (Sizes, Reads, Fp8),
        frame: &mut Frame,
        results: Results,
    ) {
        let (value, gathers) = (&graph.values[op.inputs[0]], reads == Reads::Gathered);
        let own = Wide { parts: gathers, ..Wide::own(value.bytes(), value.dtype) };
        // With one scale the rank's part travels as it lies, and is transposed when all parts are there.
        let columns = results == Results::Save && !fp8.original && (!gathers || fp8.recipe == Fp8Recipe::Blockwise);
        let copies = self.quantised(own, if columns { Copies::Both } else { Copies::Rows }, fp8.recipe);
        let travels = Self::travels(sizes.read(), sizes.dtype, fp8.recipe);
        let whole = gathers.then(|| self.gathered_now(travels));
        self.renew_weight((sizes.inputs * sizes.outputs, sizes.dtype), fp8);
        let out = self.storage(sizes.made(), "te.generic_gemm");
        let shape = (sizes.tokens, sizes.outputs, sizes.inputs);
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::Forward, self.settings.forward);
        whole.into_iter().for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        self.keep_input(op, fp8, (frame, results), copies);
    }

    pub(in super::super) fn fp8_column_linear_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        (index, sizes, reads, fp8): (usize, Sizes, Reads, Fp8),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let (dtype, dispatch, gathers) = (sizes.dtype, self.settings.backward, reads == Reads::Gathered);
        let value = &graph.values[op.inputs[0]];
        let mut held = self.quantised(Wide::own(sizes.made(), dtype), Copies::Both, fp8.recipe);
        let own = Wide { parts: gathers, ..Wide::own(value.bytes(), value.dtype) };
        let saved = frame.saved[Self::saved(frame, index).0];
        held.extend(self.kept_input(saved, own, fp8));
        let travels = Self::travels(sizes.read(), dtype, fp8.recipe);
        let whole = gathers.then(|| self.temporary(travels.1, "all_gather_into_tensor"));
        if gathers {
            self.begin_exchange(Collective::AllGather, travels.1, travels.0);
        }
        let result = self.temporary(sizes.read(), "te.generic_gemm");
        let shape = (sizes.tokens, sizes.inputs, sizes.outputs);
        self.engine_matmul(shape, DType::Fp8, MatmulLayout::DataGradient, dispatch);
        if reads == Reads::Copied {
            self.begin_exchange(Collective::AllReduce, sizes.read(), dtype);
        }
        let part: Option<Storage> = whole.map(|whole| {
            self.end_exchange();
            let part = self.temporary(value.bytes(), "reduce_scatter_tensor");
            self.begin_exchange(Collective::ReduceScatter, sizes.read(), dtype);
            held.extend(self.turn_gathered(whole, travels.1, fp8.recipe));
            part
        });
        let weight = self.engine_weight_gradient(sizes, dispatch, &held);
        held.into_iter().for_each(|storage| self.release(storage));
        self.end_column_backward(
            op,
            (index, sizes, reads),
            frame,
            (gradient, weight, [result, part.unwrap_or(result)]),
        );
    }
}
