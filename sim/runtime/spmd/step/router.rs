//! What choosing experts takes besides arithmetic: the scatter of scores, and tokens sent to experts.

use super::state::{FULL, HALF, Step};
use crate::plan::xla::Spread;
use crate::program::{Category, Collective, Comm, DType, MemoryKind};
use crate::runtime::spmd::block::Weight;
use crate::runtime::spmd::tape::Value;

impl Step<'_> {
    /// Scores of the chosen experts are put among zeros by index (`moe.py`, `reshape_and_update_weights`). The partitioner does
    /// not see that each chip's indices are of its own tokens: all chips get all numbers of tokens, whole and in their three
    /// parts, and add their scores up (`tests/oracles/xla_steps.json`, the steps with experts).
    pub(super) fn scatter_scores(&mut self) {
        let Some((tokens, top_k, count)) = self.routed() else { return };
        let index = FULL * tokens * top_k;
        for (kind, bytes, dtype) in [
            (Collective::AllGather, index, DType::Fp32),
            (Collective::AllGather, 3 * index, DType::Fp32),
            (Collective::AllReduce, HALF * tokens * count, DType::Bf16),
        ] {
            self.among_tokens(kind, bytes, dtype);
        }
    }

    /// The gradient of the chosen scores is looked up among all tokens'.
    pub(super) fn scatter_scores_backward(&mut self) {
        if let Some((tokens, _, count)) = self.routed() {
            self.among_tokens(Collective::AllGather, HALF * tokens * count, DType::Bf16);
        }
    }

    /// Tokens of all chips, experts of each, and experts; none where one chip has them all.
    fn routed(&self) -> Option<(u64, u64, u64)> {
        let experts = self.job.model.experts()?;
        let chips = u64::from(self.job.mesh.ranks() / self.job.mesh.alike());
        (chips > 1).then_some((self.tokens() * chips, experts.top_k, experts.count))
    }

    fn among_tokens(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        let comm = Comm { dtype, ..self.comm(kind, self.groups.batch, bytes) };
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[], &[]), after);
        self.tape.join(at);
    }

    /// Adds up what chips with the same tokens made with experts of their own.
    pub(super) fn sum_experts(&mut self, value: Value, bytes: u64) {
        if self.job.expert_parts() > 1 {
            let comm = self.comm(Collective::AllReduce, self.groups.expert, bytes);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&[value], &[]), after);
            self.tape.join(at);
        }
    }

    /// Tokens to the chips of their experts, or back.
    pub(super) fn send(&mut self, value: Value, sent: Value, bytes: u64) {
        let comm = self.comm(Collective::AllToAll, self.groups.expert, bytes);
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[value], &[sent]), after);
        self.tape.join(at);
    }

    /// Rows that a matmul with a weight multiplies, of those that its input has.
    pub(super) fn rows_of(&self, weight: &Weight, rows: u64) -> u64 {
        if weight.experts { self.job.multiplied(rows) } else { rows }
    }

    /// How many copies go where: the sums of each chip's experts, and each expert's (`moe.py`, `ra2a_and_route`).
    pub(super) fn count_copies(&mut self) {
        let (Some(Spread::Copies { .. }), Some(experts)) = (self.job.spread_of_sorted(), self.job.model.experts())
        else {
            return;
        };
        let chips = u64::from(self.job.mesh.expert);
        for numbers in [chips * chips, chips * experts.count] {
            let comm =
                Comm { dtype: DType::Fp32, ..self.comm(Collective::AllGather, self.groups.expert, FULL * numbers) };
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&[], &[]), after);
            self.tape.join(at);
        }
    }

    /// Copies between a chip's own order and a buffer for the most there can be: what moves is as many as there are.
    pub(super) fn exchange_copies(&mut self, (value, from): (Value, u64), (sent, to): (Value, u64)) {
        self.send(value, sent, from.min(to));
    }

    /// Tokens of all chips of the expert axis, or the sum of what they made, of so many bytes in all.
    pub(super) fn over_experts(&mut self, kind: Collective, (value, made): (Value, Value), bytes: u64) {
        let comm = self.comm(kind, self.groups.expert, bytes);
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (&[value], &[made]), after);
        self.tape.join(at);
    }

    /// Rows of experts that other chips have hold anything until they are set to zero, in a pass over the whole result
    /// (`kernels/megablox/backend.py`, `_zero_uninitialized_memory`).
    pub(super) fn zero_rows(&mut self, weight: &Weight, bytes: u64) {
        if weight.experts && matches!(self.job.spread_of_sorted(), Some(Spread::Ring { .. })) {
            self.tape.kernel("zero rows", Self::memory(MemoryKind::Elementwise, bytes, bytes), &[], &[]);
        }
    }

    /// Whether a weight is that of sorted experts over an axis, with a bias.
    fn has_bias_rows(&self, weight: &Weight) -> bool {
        let biased = self.job.model.experts().is_some_and(|experts| experts.bias);
        weight.experts && biased && self.job.spread_of_sorted().is_some()
    }

    /// The bias of each copy's expert (`moe.py`, `transform_bias`). Those of the first matmuls are read once more where a gate is made
    /// again.
    pub(super) fn rows_of_biases(&mut self, weight: &Weight, bytes: u64, keeps: bool) {
        if self.has_bias_rows(weight) {
            let category = if keeps { Category::Activation } else { Category::Recompute };
            let rows = self.tape.value("bias rows", bytes, category);
            self.tape.kernel("bias rows", Self::memory(MemoryKind::Gather, bytes, bytes), &[], &[rows]);
            if !keeps && !weight.row_parallel {
                self.bias_rows.push(rows);
            }
        }
    }

    /// Gradients of biases: rows of copies, added up by their experts.
    pub(super) fn bias_rows_backward(&mut self, weight: &Weight, (gradient, bytes): (Value, u64)) {
        if self.has_bias_rows(weight) {
            self.tape.kernel("bias backward", Self::memory(MemoryKind::Scatter, bytes, 0), &[gradient], &[]);
        }
    }

    /// The sum of the gradients of a gate's two factors: kernels of sorted experts add nothing up.
    pub(super) fn add_up_rows(
        &mut self,
        (variant, index): (usize, usize),
        (first, second): (Option<Value>, Value),
        bytes: u64,
    ) {
        let weight = self.variants[variant].block.weights[index];
        let Some(first) = first.filter(|_| weight.experts && self.job.spread_of_sorted().is_some()) else { return };
        let work = Self::memory(MemoryKind::Elementwise, 2 * bytes, bytes);
        self.tape.kernel("add", work, &[first, second], &[second]);
    }
}
