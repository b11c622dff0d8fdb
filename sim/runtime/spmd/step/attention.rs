//! Attention, forward and backward: a kernel, or matmuls around a softmax.

use super::state::{FULL, HALF, Step};
use crate::plan::xla::Attention;
use crate::plan::xla::Policy;
use crate::program::{AttentionShape, Category, Collective, DType, Grouping, MatmulLayout, MemoryKind, Pass, Work};
use crate::runtime::spmd::tape::Value;

/// Lanes of a vector register: the kernel writes each row's log-sum-exp on all of them
/// (jax@0.10.2, `pallas/ops/tpu/splash_attention/splash_attention_kernel.py`, `NUM_LANES`).
const LANES: u64 = 128;

impl Step<'_> {
    /// Bytes of keys and values of whole sequences.
    fn sequence_bytes(&self) -> u64 {
        let model = &self.job.model;
        let kv_heads = (model.kv_heads() / u64::from(self.job.mesh.tensor)).max(1);
        2 * HALF * kv_heads * model.head_dim() * self.job.batch * self.job.seq
    }

    /// Bytes of a score of attention in matmuls.
    fn score(&self) -> u64 {
        if self.job.float32_scores { FULL } else { HALF }
    }

    /// Keys, and values, of whole sequences from all chips that share them, while the step waits
    /// (`context_parallel_strategy: all_gather`).
    fn gather_sequences(&mut self, reads: &[Value]) -> Vec<Value> {
        let mut all = reads.to_vec();
        if self.job.mesh.context < 2 {
            return all;
        }
        for name in ["keys", "values"] {
            let bytes = self.sequence_bytes() / 2;
            let whole = self.tape.value(name, bytes, Category::AllGatherOutput);
            let comm = self.comm(Collective::AllGather, self.groups.context, bytes);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (reads, &[whole]), after);
            self.tape.join(at);
            all.push(whole);
        }
        all
    }

    /// All heads of these tensors, from chips of the tensor axis that all multiply them, while the step waits.
    fn gather_heads(&mut self, (reads, shape): (&[Value], AttentionShape)) -> Vec<Value> {
        let mut all = reads.to_vec();
        if self.job.same_heads() < 2 {
            return all;
        }
        let rows = HALF * shape.batch * shape.head_dim;
        let sizes = [shape.heads * shape.queries, shape.kv_heads * shape.keys, shape.kv_heads * shape.keys];
        for (&read, size) in reads.iter().zip(sizes) {
            let whole = self.tape.value("all heads", rows * size, Category::AllGatherOutput);
            let comm = self.comm(Collective::AllGather, self.groups.tensor, rows * size);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&[read], &[whole]), after);
            self.tape.join(at);
            all.push(whole);
        }
        all
    }

    /// Forward, into `output`.
    pub(super) fn attend(&mut self, shape: AttentionShape, reads: &[Value], output: Value, category: Category) {
        let gathered = self.gather_sequences(reads);
        let gathered = self.gather_heads((&gathered, shape));
        if self.tape.pass == Pass::Recompute {
            self.sequences = gathered[reads.len()..].to_vec();
        }
        let reads = &gathered[..];
        match self.job.attention {
            Attention::Splash { .. } => {
                let sums =
                    self.tape.value("log-sum-exp", FULL * LANES * shape.heads * shape.batch * shape.queries, category);
                let work = Work::Attention { shape, dtype: DType::Bf16, backward: false };
                let mut writes = vec![output, sums];
                if self.tape.pass == Pass::Recompute {
                    // One of the lanes, laid out for the kernel of queries and again for that of keys and values.
                    let bytes = 2 * FULL * shape.heads * shape.batch * shape.queries;
                    let rows = self.tape.value("log-sum-exp of rows", bytes, category);
                    self.row_sums = Some(rows);
                    writes.push(rows);
                }
                self.tape.kernel("splash_attention", work, reads, &writes);
            }
            Attention::Cudnn { .. } => {
                let sums = self.tape.value("log-sum-exp", FULL * shape.heads * shape.batch * shape.queries, category);
                let work = Work::Attention { shape, dtype: DType::Bf16, backward: false };
                self.tape.kernel("fmha", work, reads, &[output, sums]);
            }
            Attention::DotProduct => {
                let scores = shape.batch * shape.heads * shape.queries * shape.keys;
                // What is kept of them is stored as it is made.
                let element = |bytes| if self.job.remat == Policy::None { 0 } else { bytes };
                let (full, half) = (element(self.score()), element(HALF));
                let raw = self.tape.value("scores", full * scores, category);
                self.product(shape, (shape.keys, shape.head_dim), &reads[..reads.len().min(2)], raw);
                let weights = self.tape.value("probabilities", half * scores, category);
                let softmax = Self::memory(MemoryKind::Softmax, 2 * self.score() * scores, HALF * scores);
                self.tape.kernel("softmax", softmax, &[raw], &[weights]);
                let last: Vec<Value> = reads.last().copied().into_iter().chain([weights]).collect();
                self.product(shape, (shape.head_dim, shape.keys), &last, output);
            }
        }
    }

    /// Backward: gradients of queries, keys and values from `gradient`, that of the result.
    pub(super) fn attend_backward(
        &mut self,
        shape: AttentionShape,
        (reads, gradient): (&[Value], Value),
        outputs: &[Value],
    ) {
        // What runs again has gathered them for both.
        let mut all = match std::mem::take(&mut self.sequences) {
            none if none.is_empty() => self.gather_sequences(reads),
            sequences => [reads, &sequences[..]].concat(),
        };
        let gradient = self.gather_heads((&[gradient], shape)).pop().unwrap_or(gradient);
        all.push(gradient);
        match self.job.attention {
            // One kernel, or one for queries and one for keys and values: the same matmuls but two, which the second
            // repeats. Both are costed as one backward.
            Attention::Splash { fused_backward, block } => {
                all.extend(self.row_sums.take());
                let work = Work::Attention { shape, dtype: DType::Bf16, backward: true };
                let blocks = if fused_backward { shape.keys.div_ceil(block.min(shape.queries)) } else { 1 };
                self.splash_backward((work, shape), blocks, &all, outputs);
                self.scatter_sequences(outputs);
            }
            Attention::Cudnn { .. } => {
                let work = Work::Attention { shape, dtype: DType::Bf16, backward: true };
                self.tape.kernel("fmha backward", work, &all, outputs);
                self.scatter_sequences(outputs);
            }
            Attention::DotProduct => {
                let scores = shape.batch * shape.heads * shape.queries * shape.keys;
                // The softmax's backward is part of the matmuls around it; scores that were not kept are there once more.
                let kept = self.job.remat == Policy::None;
                let element = if kept { HALF } else { self.score() };
                let raw = self.tape.value("gradient of probabilities", element * scores, Category::BackwardTemporary);
                self.product(shape, (shape.keys, shape.head_dim), &[gradient], raw);
                let weights = match kept {
                    true => raw,
                    false => self.tape.value("gradient of scores", HALF * scores, Category::BackwardTemporary),
                };
                let softmax = Self::memory(MemoryKind::Softmax, 2 * self.score() * scores, HALF * scores);
                self.tape.kernel("softmax backward", softmax, &[raw], &[weights]);
                for &output in outputs {
                    all.push(weights);
                    self.product(shape, (shape.head_dim, shape.keys), &all, output);
                }
                self.scatter_sequences(outputs);
            }
        }
    }

    /// The kernel of gradients. One kernel for all three writes gradients of queries for each block of keys, and they are summed behind
    /// it (jax@0.10.2, `splash_attention_kernel.py`, `_splash_attention_bwd_dkv`).
    fn splash_backward(
        &mut self,
        (work, shape): (Work, AttentionShape),
        blocks: u64,
        reads: &[Value],
        outputs: &[Value],
    ) {
        const KERNEL: &str = "splash_attention backward";
        let (2.., [queries, keys @ ..]) = (blocks, outputs) else {
            self.tape.kernel(KERNEL, work, reads, outputs);
            return;
        };
        let bytes = HALF * shape.batch * shape.heads * shape.queries * shape.head_dim;
        let parts = self.tape.value("gradients of queries by block", blocks * bytes, Category::BackwardTemporary);
        self.tape.kernel(KERNEL, work, reads, &[&[parts], keys].concat());
        // What reads the sum makes it: all of them are read there in place of one.
        let sum = Self::memory(MemoryKind::Elementwise, (blocks - 1) * bytes, 0);
        self.tape.kernel("sum over blocks of keys", sum, &[parts], &[*queries]);
    }

    /// Gradients of keys and values summed over the chips that share sequences, each keeping its part: as `shard_map` has it,
    /// of which the compiler makes what it makes of weights' gradients.
    fn scatter_sequences(&mut self, outputs: &[Value]) {
        if self.job.mesh.context > 1 {
            let slices = self.job.flags.all_reduce_and_slice;
            let kind = if slices { Collective::AllReduce } else { Collective::ReduceScatter };
            let comm = self.comm(kind, self.groups.context, self.sequence_bytes());
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (outputs, &[]), after);
            self.tape.join(at);
        }
    }

    /// A matmul of every head's queries by something of the given columns, over the given length.
    fn product(&mut self, shape: AttentionShape, (n, k): (u64, u64), reads: &[Value], output: Value) {
        let m = shape.batch * shape.heads * shape.queries;
        let (dtype, layout) = (DType::Bf16, MatmulLayout::Forward);
        let work = match self.job.gpu() {
            None => Work::Matmul { m, n, k, dtype, layout },
            // A matrix of its own for each head of each sequence.
            Some(_) => {
                let groups = shape.batch * shape.heads;
                let kernels = Grouping::Batched;
                Work::GroupedMatmul { groups, rows: m, inputs: k, outputs: n, dtype, layout, kernels }
            }
        };
        self.tape.kernel("dot_general", work, reads, &[output]);
    }
}
