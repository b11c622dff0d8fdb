//! Gradients of several micro-batches, added up before the optimizer's step.
//!
//! In a scan over micro-batches (MaxText's `utils/gradient_accumulation.py`) the sums are part of what the loop carries: as many
//! numbers as a chip has of parameters, in their type. A gradient is added as soon as it is there, and is reduced before: weights are
//! gathered and gradients scattered for every micro-batch. Embedding and head are cast
//! once, before it. Under `optax.MultiSteps` the sums are among the arguments, in fp32, each
//! micro-batch is a step of its own, and the inner optimizer runs in each of them; what it makes is kept in the last alone.

use super::state::{FULL, HALF, Step};
use crate::program::{Category, MemoryKind};
use crate::runtime::optimizer::param::elements;

impl Step<'_> {
    /// Zeros that a loop over micro-batches adds gradients to.
    pub(super) fn begin_sums(&mut self) {
        let bytes = self.full() * elements(&self.parameters());
        let sums = self.tape.value("accumulated gradients", bytes, Category::ShardedGradient);
        self.tape.kernel("broadcast", Self::memory(MemoryKind::Copy, 0, bytes), &[], &[sums]);
        self.sums = Some(sums);
        // PyTorch/XLA has micro-batches one after the other in its graph, and casts where it multiplies.
        if !self.job.half_weights && self.job.torch.is_none() {
            let model = &self.job.model;
            let tables = if model.tied_head { 1 } else { 2 };
            let numbers = tables * (self.words() * model.width).div_ceil(u64::from(self.job.mesh.shards()));
            let cast = self.tape.value("embedding and head in bf16", HALF * numbers, Category::AllGatherInput);
            let work = Self::memory(MemoryKind::Elementwise, FULL * numbers, HALF * numbers);
            self.tape.kernel("convert", work, &[], &[cast]);
            self.cast_tables = Some(cast);
        }
    }

    /// Adds the gradients that are there to the sums, if gradients are added up; whoever reads them frees them.
    pub(super) fn add_up(&mut self) {
        let sums: Vec<_> = match self.sums {
            Some(sums) => vec![sums],
            // Sums that are arguments have no value here.
            None if self.job.multi_steps && self.job.accumulation > 1 => vec![],
            None => return,
        };
        let gradients = std::mem::take(&mut self.tables);
        if gradients.is_empty() {
            return;
        }
        let read: u64 = gradients.iter().map(|value| self.tape.values[value.0 as usize].bytes.0).sum();
        let reads: Vec<_> = gradients.into_iter().chain(sums.iter().copied()).collect();
        self.tape.kernel("add", Self::memory(MemoryKind::Elementwise, read, 0), &reads, &sums);
    }

    /// What the sums themselves take to be read and written once a micro-batch, and the loop is ready for the next.
    pub(super) fn accumulated(&mut self) {
        let element = if self.job.multi_steps { FULL } else { self.full() };
        let whole = if self.job.multi_steps && self.job.torch.is_some() { self.job.mesh.shards() } else { 1 };
        let bytes = element * u64::from(whole) * elements(&self.parameters());
        let sums: Vec<_> = self.sums.into_iter().collect();
        let reads: Vec<_> = sums.iter().copied().chain(self.cast_tables).collect();
        self.tape.kernel("add", Self::memory(MemoryKind::Elementwise, bytes, bytes), &reads, &sums);
        self.stacks.clear();
        self.hoisted.clear();
        self.gathered = None;
    }

    /// Another program begins: nothing of the last one is there but its arguments.
    pub(super) fn forget(&mut self) {
        self.shards = None;
    }
}
