//! `GroupedLinear` in fp8 (`module/grouped_linear.py`, `csrc/extensions/cast.cpp`, 2.7 to 2.9).
//!
//! Rows of each expert are a tensor with a scale of its own: under scales from earlier steps one kernel casts and transposes
//! all of them, under the other recipes each expert's rows have kernels of their own, in one call. Of what was read the
//! transposed copies are kept.

use super::super::super::frame::{Node, Results};
use super::super::super::{Eager, Frame, Storage};
use super::super::expert_sizes::Sizes;
use super::super::fp8::{Copies, Wide};
use super::super::left::Left;
use crate::model::graph::Op;
use crate::model::megatron::{Fp8, Fp8Recipe};
use crate::program::{Dispatch, MatmulLayout, MemoryKind};

impl Eager {
    /// Rows of all experts, `columns` wide, quantised as they lie and, if a gradient is made from them, transposed
    /// (`tex.split_quantize`).
    fn split_quantise(&mut self, sizes: &Sizes, columns: u64, copies: Copies, recipe: Fp8Recipe) -> [Vec<Storage>; 2] {
        let dispatch = self.dispatch_of_pass();
        let each = Wide::own(sizes.rows / sizes.local * columns * sizes.dtype.bytes(), sizes.dtype);
        let mut made = [vec![], vec![]];
        // Where blocks have scales those of all experts lie in one buffer each way (`bulk_allocate_fp8_blockwise_tensors`).
        let (buffers, experts) = if recipe.of_blocks() { (1, sizes.local) } else { (sizes.local, 1) };
        for _ in 0..buffers {
            made[0].push(self.of_pass(experts * each.copy(recipe), "te.quantize"));
            if copies == Copies::Both {
                made[1].push(self.of_pass(experts * each.copy(recipe), "te.quantize"));
            }
        }
        if recipe == Fp8Recipe::Delayed && copies == Copies::Both {
            let elements = each.elements * sizes.local;
            let read = elements * sizes.dtype.bytes();
            self.pointwise("te.multi_cast_transpose", MemoryKind::Elementwise, read, 2 * elements, dispatch);
            return made;
        }
        for expert in 0..sizes.local {
            self.quantise_by(each, copies, recipe, if expert == 0 { dispatch } else { Dispatch::Extra });
        }
        made
    }

    /// Gradients of experts' results, quantised, and those of their biases: a call for each expert that sums and quantises
    /// (`tex.bgrad_quantize`), or, under blockwise scaling, all sums and then one call.
    fn quantise_gradient(&mut self, sizes: &Sizes, biased: bool, fp8: Fp8) -> ([Vec<Storage>; 2], Vec<Storage>) {
        let (copies, recipe, rows) = (Copies::all(fp8), fp8.recipe, sizes.rows / sizes.local);
        let mut sums = vec![];
        if !biased || recipe == Fp8Recipe::Blockwise {
            for _ in 0..if biased { sizes.local } else { 0 } {
                sums.push(self.bias_of_quantised(rows, sizes.outputs, sizes.dtype, recipe));
            }
            return (self.split_quantise(sizes, sizes.outputs, copies, recipe), sums);
        }
        let each = Wide::own(rows * sizes.outputs * sizes.dtype.bytes(), sizes.dtype);
        let mut made = [vec![], vec![]];
        for _ in 0..sizes.local {
            sums.push(self.bias_of_quantised(rows, sizes.outputs, sizes.dtype, recipe));
            let quantised = self.quantised(each, copies, recipe);
            made.iter_mut().zip(quantised).for_each(|(list, storage)| list.push(storage));
        }
        (made, sums)
    }

    /// After the optimizer's step the fp8 copies of every expert's weight are made anew.
    fn renew_experts(&mut self, sizes: &Sizes, fp8: Fp8) {
        for _ in 0..sizes.local {
            self.renew_weight(sizes.inputs * sizes.outputs, sizes.dtype, fp8);
        }
    }

    pub(super) fn fp8_grouped_linear(&mut self, op: &Op, sizes: &Sizes, fp8: Fp8, frame: &mut Frame, results: Results) {
        let keeps = results == Results::Save && !fp8.original;
        let copies = if keeps { Copies::all(fp8) } else { Copies::Rows };
        let [rows, transposed] = self.split_quantise(sizes, sizes.inputs, copies, fp8.recipe);
        self.renew_experts(sizes, fp8);
        let out = self.storage(sizes.rows * sizes.outputs * sizes.dtype.bytes(), "te.general_grouped_gemm");
        self.grouped_matmul(sizes, MatmulLayout::Forward, self.settings.forward);
        // The copy that the weight's gradient is made of is kept: the transposed one, or the only one.
        let only = keeps && copies == Copies::Rows;
        let kept = if only { rows.clone() } else { transposed };
        rows.into_iter().filter(|_| !only).for_each(|storage| self.release(storage));
        frame.slots[op.outputs[0]] = Some(out);
        if fp8.original {
            let input = self.retain(Self::value(frame, op.inputs[0]));
            return self.keep(frame, results, &[input]);
        }
        self.keep(frame, results, &kept);
    }

    pub(super) fn fp8_grouped_linear_backward(
        &mut self,
        node: Node<'_>,
        sizes: &Sizes,
        fp8: Fp8,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { op, index, .. } = node;
        let dispatch = self.settings.backward;
        let (of_weights, of_biases) = op.params.split_at(sizes.local as usize);
        let (of_result, sums) = self.quantise_gradient(sizes, !of_biases.is_empty(), fp8);
        let result = self.temporary(sizes.rows * sizes.inputs * sizes.dtype.bytes(), "te.general_grouped_gemm");
        self.grouped_matmul(sizes, MatmulLayout::DataGradient, dispatch);
        let weight = |eager: &mut Self| eager.temporary(sizes.weight(), "te.general_grouped_gemm");
        let fused = self.fuses_accumulation();
        let mut weights: Vec<Storage> = if fused { vec![] } else { of_weights.iter().map(|_| weight(self)).collect() };
        let (start, end) = Self::saved(frame, index);
        let mut read = frame.saved[start..end].to_vec();
        let input = fp8.original.then(|| read.remove(0));
        if fp8.original {
            read = self.split_quantise(sizes, sizes.inputs, Copies::all(fp8), fp8.recipe).concat();
        }
        if !self.leave_for_later(
            Left::Grouped(*sizes),
            &[read.clone(), of_result[usize::from(fp8.has_columns())].clone()].concat(),
        ) {
            self.grouped_matmul(sizes, self.weight_layout(), dispatch);
        }
        // What was read is emptied as soon as it is multiplied, before the stand-ins that every expert gets for a gradient
        // that is in its main gradient already.
        read.into_iter().for_each(|storage| self.release(storage));
        if fused {
            weights = of_weights.iter().map(|_| weight(self)).collect();
        }
        input.into_iter().chain(of_result.concat()).for_each(|storage| self.release(storage));
        self.release(gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        for (&param, sum) in of_biases.iter().zip(sums) {
            self.store_leaf(frame.params.index(param), sum, sizes.dtype);
        }
        self.store_experts(of_weights, weights, sizes.dtype, frame);
    }
}
