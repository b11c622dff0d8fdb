//! Weights gathered for use, and their gradients reduced: where in the step, as the flags let the compiler.

use super::shards::{Among, Gathered};
use super::state::{HALF, Step};
use crate::plan::xla::flags::Overlap;
use crate::plan::xla::{Quantization, UNROLLED};
use crate::program::{Category, Collective, DType, MatmulLayout, MemoryKind, Work};
use crate::runtime::spmd::block::Weight;
use crate::runtime::spmd::tape::{At, Value};

impl Step<'_> {
    /// All that weights are sharded over.
    pub(super) fn all(&self) -> Among {
        Among { group: self.groups.fsdp, shards: self.job.mesh.shards(), whole: false, others: None }
    }

    /// Who has the shards of a block's weight. MaxText asks for experts' whole where there is an axis of experts
    /// (`maybe_all_gather_kernel_weight_in_expert_parallelism`) and where rows are sorted (`sparse_matmul`'s `shard_map`).
    pub(super) fn among(&self, weight: &Weight) -> Among {
        let mesh = self.job.mesh;
        if !weight.experts || mesh.expert < 2 {
            return Among { whole: weight.experts && self.job.capacity_factor.is_none(), ..self.all() };
        }
        let others = (!weight.expert_parallel).then_some((self.groups.expert, mesh.expert));
        Among { group: self.groups.expert_fsdp, shards: mesh.expert_shards(), whole: true, others }
    }

    /// Numbers of a block's weight on this chip.
    pub(super) fn own(&self, weight: &Weight) -> u64 {
        weight.numbers().div_ceil(u64::from(self.among(weight).chips()))
    }

    /// How a matmul of so many rows exchanges: in windows only where that pays. Outside of a pipeline its stages have the same
    /// shards and other tokens, so nothing is in windows there.
    pub(super) fn settle(&self, how: Overlap, rows: u64, among: Among) -> Overlap {
        let replicated = self.staged.is_none() && self.job.pipeline.is_some();
        let pays = !among.whole && !replicated && self.job.windows.pay(rows, among.shards);
        if how == Overlap::Windowed && !pays { Overlap::None } else { how }
    }

    /// Gathers a weight of `numbers`, which starts when `after` is over.
    pub(super) fn gather(&mut self, numbers: u64, among: Among, how: Overlap, after: Vec<At>) -> Gathered {
        if among.chips() < 2 {
            return Gathered::Own;
        }
        if let Some(whole) = self.gathered.filter(|_| self.gathered_once()) {
            return Gathered::Whole(whole);
        }
        if how == Overlap::Windowed {
            return Gathered::Windowed(numbers, among);
        }
        let mut value = self.shards;
        for (group, bytes) in among.steps(HALF * numbers) {
            let reads: Vec<Value> = value.into_iter().collect();
            let gathered = self.tape.value("gathered", bytes, Category::UnshardedParameter);
            let comm = self.comm(Collective::AllGather, group, bytes);
            self.tape.exchange(comm, (&reads, &[gathered]), after.clone());
            value = Some(gathered);
        }
        value.map_or(Gathered::Own, Gathered::Whole)
    }

    /// A weight of the block that is being written, by its place, as [`gather`](Self::gather) has it. Without repeats it is the
    /// same in each iteration, so what would send it in windows does so once, before the loop.
    pub(super) fn gather_weight(
        &mut self,
        index: usize,
        numbers: u64,
        (among, how): (Among, Overlap),
        after: Vec<At>,
    ) -> Gathered {
        let same = self.staged.is_some_and(|all| all.repeats == 1);
        if !same || how != Overlap::Windowed {
            return self.gather(numbers, among, how, after);
        }
        let place = (self.layer, index);
        if let Some((_, value)) = self.hoisted.iter().find(|(known, _)| *known == place) {
            return Gathered::Whole(*value);
        }
        let gathered = self.gather(numbers, among, Overlap::None, after);
        if let Gathered::Whole(value) = gathered {
            self.hoisted.push((place, value));
        }
        gathered
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
        match weight {
            Gathered::Whole(value) => reads.push(*value),
            // A chip that has all of a weight reads its copy in bf16, which lies there through both loops.
            Gathered::Own if self.linear => reads.extend(self.shards),
            _ => {}
        }
        self.maxima((m, n, k), layout);
        let work = Work::Matmul { m, n, k, dtype: self.multiplied(layout), layout };
        self.tape.kernel("dot_general", work, &reads, writes);
        if let Gathered::Windowed(numbers, among) = *weight {
            self.window(Collective::AllGather, numbers, among, before);
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
    fn window(&mut self, kind: Collective, numbers: u64, among: Among, before: Vec<At>) {
        let shards = u64::from(among.shards);
        // One window comes while another is used.
        let windows = self.tape.value("windows", 2 * HALF * numbers.div_ceil(shards), Category::AllGatherOutput);
        let comm = self.comm(kind, among.group, HALF * numbers);
        let at = self.tape.exchange(comm, (&[], &[windows]), before);
        self.tape.join(at);
    }

    /// The gradient of a weight, `inputs` by `outputs`, from its input and the gradient of its result; reduced over the
    /// chips that have other tokens.
    pub(super) fn weight_gradient(
        &mut self,
        (inputs, outputs): (u64, u64),
        tokens: u64,
        among: Among,
        reads: &[Value],
    ) {
        let once = self.gathered_once();
        let (numbers, shards) = (inputs * outputs, if once { 1 } else { u64::from(among.chips()) });
        let own = numbers.div_ceil(shards);
        let how = if shards < 2 { Overlap::None } else { self.settle(self.job.flags.scatter, tokens, among) };
        let before = self.tape.now();
        let whole = how != Overlap::Windowed;
        let bytes = HALF * if whole { numbers } else { own };
        let gradient = self.tape.value("weight gradient", bytes, Category::UnshardedGradient);
        let layout = MatmulLayout::WeightGradient;
        self.maxima((inputs, outputs, tokens), layout);
        let dtype = self.multiplied(layout);
        let work = Work::Matmul { m: inputs, n: outputs, k: tokens, dtype, layout };
        self.tape.kernel("dot_general", work, reads, &[gradient]);
        if let Some(flags) = self.job.gpu() {
            return self.reduce_later(flags, gradient, numbers);
        }
        let mut shard = gradient;
        if shards > 1 && !whole {
            self.window(Collective::ReduceScatter, numbers, among, before);
        } else if shards > 1 {
            let slices = self.job.flags.all_reduce_and_slice;
            let kind = if slices { Collective::AllReduce } else { Collective::ReduceScatter };
            // Back the way by which it was gathered.
            let steps = among.steps(HALF * numbers);
            for (at, &(group, bytes)) in steps.iter().enumerate().rev() {
                // A table's is cut where it is read; with clipping that is when all gradients are there.
                let stays = self.job.clip && self.gradients.is_none() && slices && among.chips() > UNROLLED;
                let left = match at {
                    0 if stays => bytes,
                    0 => HALF * own,
                    _ => steps[at - 1].1,
                };
                let part = self.tape.value("gradient shard", left, Category::ShardedGradient);
                let comm = self.comm(kind, group, bytes);
                let at = self.tape.exchange(comm, (&[shard], &[part]), vec![]);
                self.tape.steps[at.0 as usize].in_place = true;
                if how == Overlap::None {
                    self.tape.join(at);
                }
                shard = part;
            }
        }
        let (replicas, group) = self.replicas();
        if replicas > 1 && self.staged.is_none() {
            let summed = self.tape.value("gradient shard", HALF * own, Category::ShardedGradient);
            let comm = self.comm(Collective::AllReduce, group, HALF * own);
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
                    // In a pipeline added to what other iterations made: to all repeats', of which all but one get zeros.
                    let (read, written) =
                        self.staged.map_or((0, numbers), |all| (all.repeats * numbers, all.repeats * numbers));
                    let work = Self::memory(
                        MemoryKind::Elementwise,
                        HALF * numbers + self.full() * read,
                        self.full() * written,
                    );
                    self.tape.kernel("dynamic_update_slice", work, &[shard, stack], &[stack]);
                }
                None => self.tables.push(shard),
            }
        }
    }
}
