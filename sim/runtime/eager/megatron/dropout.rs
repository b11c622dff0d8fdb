//! Bias, dropout and residual sum (`megatron/core/fusions/fused_bias_dropout.py`), as one kernel that inductor generates
//! from `jit_fuser`, or as PyTorch's operators.
//!
//! The compiled forward draws a seed and keeps the mask, one byte an element. Its backward sums the bias's gradient in two
//! steps (`torch/_inductor/choices.py`, `reduction_split_factor`).

use super::super::frame::{Node, Results};
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::MegatronOp;
use crate::program::{DType, Dispatch, MemoryKind};

/// Bytes of a random seed.
const SEED: u64 = 8;

/// The divisor that is nearest to a target; of two that are as near, the smaller. They come in pairs on either side of the root.
fn nearest_divisor(of: u64, target: u64) -> u64 {
    let pairs = (1..=of.isqrt()).filter(|divisor| of.is_multiple_of(*divisor));
    let divisors = pairs.flat_map(|divisor| [divisor, of / divisor]);
    divisors.min_by_key(|&divisor| (divisor.abs_diff(target), divisor)).unwrap_or(1)
}

/// Parts in which inductor sums the rows of a matrix column by column (PyTorch 2.15, outer reductions).
fn row_parts(rows: u64, columns: u64, sms: u32) -> u64 {
    const ROWS_PER_THREAD: u64 = 4;
    let (threads, sms) = (2048, u64::from(sms));
    let (least, most) = (32, 512);
    let size = if rows * columns < least * sms * threads {
        least
    } else if rows * columns < most * sms * threads {
        let thread_blocks = (sms * threads / 256).div_ceil(columns.div_ceil(128));
        let size = rows.div_ceil(ROWS_PER_THREAD * thread_blocks);
        let even = nearest_divisor(rows, size);
        if even.abs_diff(size) < 20 { even.max(least) } else { size }
    } else {
        let even = nearest_divisor(rows, most);
        if even.abs_diff(most) < 50 { even } else { most }
    };
    rows.div_ceil(ROWS_PER_THREAD * size)
}

impl Eager {
    pub(super) fn bias_dropout_add(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: MegatronOp,
        frame: &mut Frame,
        results: Results,
    ) {
        let MegatronOp::BiasDropoutAdd { dropout, fused } = kind else { unreachable!("called for residual sums") };
        if !fused {
            return self.plain_dropout_add(graph, op, dropout, frame, results);
        }
        let (bytes, elements) = (graph.values[op.outputs[0]].bytes(), graph.values[op.outputs[0]].elements);
        let mut mask = None;
        let mut seed = None;
        if dropout {
            seed = Some(self.made("inductor_seeds", SEED, 0, Dispatch::Compiled));
            mask = Some(self.storage(elements, "triton_bias_dropout_add"));
        }
        let out = self.storage(bytes, "triton_bias_dropout_add");
        let written = bytes + if dropout { elements } else { 0 };
        self.pointwise("triton_bias_dropout_add", MemoryKind::Elementwise, 2 * bytes, written, Dispatch::Compiled);
        if let Some(seed) = seed {
            self.release(seed);
        }
        frame.slots[op.outputs[0]] = Some(out);
        if results == Results::Save {
            frame.saved.extend(mask);
            frame.saved_end.push(frame.saved.len() as u32);
        } else if !graph.is_node(op) {
            mask.into_iter().for_each(|mask| self.release(mask));
        } else {
            match self.framework.megatron_mut() {
                Some(megatron) => megatron.lingering.extend(mask),
                None => mask.into_iter().for_each(|mask| self.release(mask)),
            }
        }
    }

    /// The same in PyTorch's operators.
    fn plain_dropout_add(&mut self, graph: &Graph, op: &Op, dropout: bool, frame: &mut Frame, results: Results) {
        let (bytes, elements) = (graph.values[op.outputs[0]].bytes(), graph.values[op.outputs[0]].elements);
        let dispatch = self.settings.forward;
        let biased = op.params.first().map(|_| self.made("aten.add", bytes, bytes, dispatch));
        let (mut mask, mut dropped) = (None, None);
        if dropout {
            mask = Some(self.storage(elements, "aten.native_dropout"));
            dropped = Some(self.storage(bytes, "aten.native_dropout"));
            self.pointwise("aten.native_dropout", MemoryKind::Elementwise, bytes, bytes + elements, dispatch);
        }
        let out = self.made("aten.add", bytes, 2 * bytes, dispatch);
        for storage in dropped.into_iter().chain(biased) {
            self.release(storage);
        }
        frame.slots[op.outputs[0]] = Some(out);
        let saved: Vec<Storage> = mask.into_iter().collect();
        self.keep(frame, results, &saved);
    }

    pub(super) fn bias_dropout_add_backward(
        &mut self,
        node: Node<'_>,
        kind: MegatronOp,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let MegatronOp::BiasDropoutAdd { dropout, fused } = kind else { unreachable!("called for residual sums") };
        let launched = if fused { Dispatch::Compiled } else { self.settings.backward };
        let value = &graph.values[op.outputs[0]];
        let (bytes, dtype) = (value.bytes(), value.dtype);
        let branch = if dropout {
            let branch = self.temporary(bytes, "triton_bias_dropout_add_backward");
            let read = bytes + value.elements;
            let name = "triton_bias_dropout_add_backward";
            self.pointwise(name, MemoryKind::Elementwise, read, bytes, launched);
            let [mask] = Self::saved_by(frame, index);
            self.release(mask);
            branch
        } else {
            self.retain(gradient)
        };
        let width = graph.dims.d;
        let rows = value.elements / width;
        let bias = op.params.first().filter(|_| graph.trains(op, 0)).map(|_| match fused {
            true => self.compiled_sum_rows(rows, width, dtype),
            false => self.sum_rows(rows, width, dtype),
        });
        self.accumulate(frame, op.inputs[0], branch.into());
        let viewed = self.framework.megatron_mut().and_then(|megatron| megatron.viewed.take());
        let view = viewed == Some(gradient);
        self.accumulate(frame, op.inputs[1], Gradient { storage: gradient, view });
        if let Some(bias) = bias {
            self.store_leaf(frame.params.index(op.params[0]), bias, dtype);
        }
    }

    /// The sum over the rows of a matrix, as inductor generates it: parts in fp32, then their sum.
    pub(super) fn compiled_sum_rows(&mut self, rows: u64, columns: u64, dtype: DType) -> Storage {
        const NAME: &str = "triton_sum";
        let parts = row_parts(rows, columns, self.settings.sms);
        let (read, written) = (rows * columns * dtype.bytes(), columns * dtype.bytes());
        if parts == 1 {
            let sum = self.temporary(written, NAME);
            self.pointwise(NAME, MemoryKind::Elementwise, read, written, Dispatch::Compiled);
            return sum;
        }
        let wide = parts * columns * DType::Fp32.bytes();
        let partial = self.temporary(wide, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, read, wide, Dispatch::Compiled);
        let sum = self.temporary(written, NAME);
        self.pointwise(NAME, MemoryKind::Elementwise, wide, written, Dispatch::Compiled);
        self.release(partial);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_divisor_is_the_one_that_a_look_at_every_number_finds() {
        for (of, target) in (1..300_u64).flat_map(|of| (1..40_u64).map(move |target| (of, target))) {
            let all = (1..=of).filter(|divisor| of.is_multiple_of(*divisor));
            let nearest = all.min_by_key(|divisor| divisor.abs_diff(target)).expect("one divides all");
            assert_eq!(nearest_divisor(of, target), nearest, "{of} near {target}");
        }
        assert_eq!(nearest_divisor(1 << 40, 500), 512);
    }
}
