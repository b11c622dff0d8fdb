//! Weights gathered for use, and their gradients reduced: where in the step, as the flags let the compiler.

use super::{Category, Collective, FULL, HALF, Step};
use crate::program::{DType, MatmulLayout, MemoryKind, Work};
use crate::runtime::spmd::Quantization;
use crate::runtime::spmd::flags::Overlap;
use crate::runtime::spmd::tape::{At, Value};

/// A weight that is ready, or on its way beside the matmul that uses it.
pub(super) enum Gathered {
    /// Read this.
    Whole(Value),
    /// In windows: exchange this beside the matmul.
    Windowed,
    /// On the chip: nothing to gather.
    Own,
}

impl Step<'_> {
    /// How a matmul of so many rows exchanges: in windows only where that pays.
    pub(super) fn settle(&self, how: Overlap, rows: u64) -> Overlap {
        let pays = self.job.windows.pay(rows, self.job.mesh.shards());
        if how == Overlap::Windowed && !pays { Overlap::None } else { how }
    }

    /// Gathers a weight of `numbers`, which starts when `after` is over.
    pub(super) fn gather(&mut self, numbers: u64, how: Overlap, after: Vec<At>) -> Gathered {
        if self.job.mesh.shards() < 2 {
            return Gathered::Own;
        }
        if how == Overlap::Windowed {
            return Gathered::Windowed;
        }
        let value = self.tape.value("gathered", HALF * numbers, Category::UnshardedParameter);
        let comm = self.comm(Collective::AllGather, self.groups.fsdp, HALF * numbers);
        let reads: Vec<Value> = self.shards.into_iter().collect();
        self.tape.exchange(comm, (&reads, &[value]), after);
        Gathered::Whole(value)
    }

    /// A matmul with a weight.
    pub(super) fn matmul(
        &mut self,
        (m, n, k, layout): (u64, u64, u64, MatmulLayout),
        weight: &Gathered,
        (reads, writes): (&[Value], &[Value]),
    ) {
        let before = self.tape.now();
        let mut reads = reads.to_vec();
        if let Gathered::Whole(value) = weight {
            reads.push(*value);
        }
        self.maxima((m, n, k), layout);
        let work = Work::Matmul { m, n, k, dtype: self.multiplied(layout), layout };
        self.tape.kernel("dot_general", work, &reads, writes);
        if let Gathered::Windowed = weight {
            let numbers = n * k;
            self.window(Collective::AllGather, numbers, before);
        }
    }

    /// What a matmul multiplies in: linears of blocks in eight bits, where the job has them.
    fn multiplied(&self, layout: MatmulLayout) -> DType {
        match (self.linear, self.job.quantization) {
            (true, Some(Quantization::Fp8Full { .. })) => DType::Fp8,
            // Eight-bit integers are as fast on chips that have them.
            (true, Some(Quantization::Int8)) if layout != MatmulLayout::WeightGradient => DType::Fp8,
            _ => DType::Bf16,
        }
    }

    /// Operands of a matmul in eight bits are read for their largest number first; rounding is part of the matmul.
    fn maxima(&mut self, (m, n, k): (u64, u64, u64), layout: MatmulLayout) {
        let fixed = matches!(self.job.quantization, Some(Quantization::Fp8Full { fixed: true }));
        if self.multiplied(layout) == DType::Fp8 && !fixed {
            let work = Self::memory(MemoryKind::Norm, HALF * k * (m + n), 0);
            self.tape.kernel("abs_max", work, &[], &[]);
        }
    }

    /// An exchange in windows beside the kernel just written, which began when `before` was over.
    fn window(&mut self, kind: Collective, numbers: u64, before: Vec<At>) {
        let shards = u64::from(self.job.mesh.shards());
        // One window comes while another is used.
        let windows = self.tape.value("windows", 2 * HALF * numbers.div_ceil(shards), Category::AllGatherOutput);
        let comm = self.comm(kind, self.groups.fsdp, HALF * numbers);
        let at = self.tape.exchange(comm, (&[], &[windows]), before);
        self.tape.join(at);
    }

    /// The gradient of a weight, `inputs` by `outputs`, from its input and the gradient of its result; reduced over the
    /// chips that have other tokens.
    pub(super) fn weight_gradient(&mut self, (inputs, outputs): (u64, u64), tokens: u64, reads: &[Value]) {
        let (numbers, shards) = (inputs * outputs, u64::from(self.job.mesh.shards()));
        let own = numbers.div_ceil(shards);
        let how = if shards < 2 { Overlap::None } else { self.settle(self.job.flags.scatter, tokens) };
        let before = self.tape.now();
        let whole = how != Overlap::Windowed;
        let bytes = HALF * if whole { numbers } else { own };
        let gradient = self.tape.value("weight gradient", bytes, Category::UnshardedGradient);
        let layout = MatmulLayout::WeightGradient;
        self.maxima((inputs, outputs, tokens), layout);
        let dtype = self.multiplied(layout);
        let work = Work::Matmul { m: inputs, n: outputs, k: tokens, dtype, layout };
        self.tape.kernel("dot_general", work, reads, &[gradient]);
        let mut shard = gradient;
        if shards > 1 && !whole {
            self.window(Collective::ReduceScatter, numbers, before);
        } else if shards > 1 {
            shard = self.tape.value("gradient shard", HALF * own, Category::ShardedGradient);
            let slices = self.job.flags.all_reduce_and_slice;
            let kind = if slices { Collective::AllReduce } else { Collective::ReduceScatter };
            let comm = self.comm(kind, self.groups.fsdp, HALF * numbers);
            let at = self.tape.exchange(comm, (&[gradient], &[shard]), vec![]);
            if how == Overlap::None {
                self.tape.join(at);
            }
        }
        if self.job.mesh.dcn_data * self.job.mesh.data > 1 {
            let summed = self.tape.value("gradient shard", HALF * own, Category::ShardedGradient);
            let comm = self.comm(Collective::AllReduce, self.groups.data, HALF * own);
            let at = self.tape.exchange(comm, (&[shard], &[summed]), vec![]);
            if how == Overlap::None {
                self.tape.join(at);
            }
            shard = summed;
        }
        self.pending.push((shard, own));
        if how != Overlap::Asynchronous {
            self.store_gradients();
        }
    }

    /// Stores reduced gradients: a block's with those of the others, in fp32; the head's and the embedding's as they are.
    pub(super) fn store_gradients(&mut self) {
        for (shard, numbers) in std::mem::take(&mut self.pending) {
            match self.gradients {
                Some(stack) => {
                    let work = Self::memory(MemoryKind::Elementwise, HALF * numbers, FULL * numbers);
                    self.tape.kernel("dynamic_update_slice", work, &[shard], &[stack]);
                }
                None => self.tables.push(shard),
            }
        }
    }
}
