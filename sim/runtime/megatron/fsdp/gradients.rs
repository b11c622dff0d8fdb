//! Gradients reduced group by group (`megatron_fsdp/megatron_fsdp.py`, `_process_post_backward_gradients`;
//! `param_and_grad_buffer.py`, `GradReducePipeline`, 0.16.1).
//!
//! Where main gradients are shared, a group's gradients are copied to a block for all of it, taken when the first of them comes;
//! when the last has come the block is reduced to the rank's part, which is added to the main gradients, in every backward.
//! Else gradients are added to main gradients as they come, and reduced in the step's last backward. Reductions
//! are waited for when more than `suggested_communication_unit_size` elements of groups wait.

use std::collections::VecDeque;

use super::cut::Group;
use super::lanes::Lanes;
use super::pool::Pool;
use crate::plan::megatron::{Fsdp, Strategy};
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, EventId, MemoryKind, StreamId, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::eager::main_gradients::Takes;
use crate::units::Bytes;

/// Gradients on their way.
#[derive(Debug)]
pub(super) struct Gradients {
    pub(super) strategy: Strategy,
    pub(super) lanes: Lanes,
    pub(super) dtype: DType,
    pub(super) ranks: u64,
    pub(super) double_buffer: bool,
    /// Elements that may wait.
    pub(super) capacity: u64,
    /// Whether they are reduced beside the last backward.
    pub(super) overlap: bool,
    pub(super) pool: Pool,
    /// Whether the step's last backward runs.
    pub(super) last: bool,
    blocks: Vec<Option<BufferId>>,
    /// Gradients of each group that are yet to come.
    missing: Vec<usize>,
    queue: VecDeque<(EventId, usize)>,
}

impl Gradients {
    pub(super) fn new(
        groups: &[Group],
        fsdp: Fsdp,
        (lanes, dtype, ranks): (Lanes, DType, u64),
        overlap: bool,
        pool: Pool,
    ) -> Gradients {
        Gradients {
            strategy: fsdp.strategy,
            lanes,
            dtype,
            ranks,
            double_buffer: fsdp.double_buffer,
            capacity: fsdp.unit_size,
            overlap,
            pool,
            last: false,
            blocks: vec![None; groups.len()],
            missing: groups.iter().map(|group| group.params.len()).collect(),
            queue: VecDeque::new(),
        }
    }

    /// Whether main gradients are shared.
    pub(super) fn shares(&self) -> bool {
        matches!(self.strategy, Strategy::Gradients | Strategy::Parameters)
    }

    /// Whether this backward reduces.
    fn reduces(&self) -> bool {
        self.shares() || self.last
    }

    /// A gradient of a group has been made.
    pub(super) fn takes(&mut self, program: &mut Builder, groups: &[Group], at: usize) -> Takes {
        if !self.shares() {
            return Takes::Sum;
        }
        self.leave_room(program, groups, at);
        if self.blocks[at].is_none() && !self.pool.holds(&groups[at]) {
            let bytes = Bytes(groups[at].elements * self.dtype.bytes());
            self.blocks[at] = Some(program.alloc(bytes, COMPUTE, Category::UnshardedGradient, "main_grad"));
        }
        Takes::Copy
    }

    /// A gradient of a group is where it belongs.
    pub(super) fn arrived(&mut self, program: &mut Builder, groups: &[Group], at: usize) {
        if !self.reduces() {
            return;
        }
        self.missing[at] -= 1;
        if self.missing[at] > 0 {
            return;
        }
        self.missing[at] = groups[at].params.len();
        let mut waiting: u64 = self.queue.iter().map(|&(_, at)| groups[at].elements).sum();
        while waiting > self.capacity {
            waiting -= self.wait_for_one(program).map_or(waiting, |at| groups[at].elements);
        }
        self.reduce(program, groups, at);
    }

    /// A backward has ended: all reductions are waited for.
    pub(super) fn returned(&mut self, program: &mut Builder) {
        if self.reduces() {
            self.wait_for_all_but(program, 0);
        }
    }

    /// What nothing has reduced beside the last backward is reduced where it lies (`reduce_scatter_gradients`).
    pub(super) fn finish(&mut self, program: &mut Builder, groups: &[Group]) {
        if self.shares() || self.overlap {
            return;
        }
        let (_, on) = self.lanes.reduced_over;
        for group in groups {
            let bytes = Bytes(group.elements * self.dtype.bytes());
            self.scale(program, bytes, COMPUTE);
            program.wait_stream(on, COMPUTE);
            self.issue(program, Collective::ReduceScatter, bytes);
        }
        program.wait_stream(COMPUTE, on);
    }

    /// Waits until one of the two sets of blocks is free for a group (`_enforce_double_buffer_limit`).
    fn leave_room(&mut self, program: &mut Builder, groups: &[Group], at: usize) {
        if !self.pool.exists() {
            return;
        }
        let mut units = self.pool.taker(&groups[at]);
        let mut keep = self.queue.len();
        for &(_, waiting) in self.queue.iter().rev() {
            units.insert(groups[waiting].unit);
            keep -= usize::from(units.len() > 2);
        }
        self.wait_for_all_but(program, keep);
    }

    fn wait_for_all_but(&mut self, program: &mut Builder, keep: usize) {
        while self.queue.len() > keep {
            self.wait_for_one(program);
        }
    }

    /// The default stream waits for the oldest reduction, and its block goes.
    fn wait_for_one(&mut self, program: &mut Builder) -> Option<usize> {
        let (event, at) = self.queue.pop_front()?;
        program.wait(COMPUTE, event);
        if let Some(block) = self.blocks[at].take() {
            program.free(block);
        }
        Some(at)
    }

    fn reduce(&mut self, program: &mut Builder, groups: &[Group], at: usize) {
        self.leave_room(program, groups, at);
        let (stream, (_, on)) = (self.lanes.reduce, self.lanes.reduced_over);
        program.wait_stream(stream, COMPUTE);
        let whole = Bytes(groups[at].elements * self.dtype.bytes());
        let part = Bytes(groups[at].part(self.ranks) * self.dtype.bytes());
        self.scale(program, whole, stream);
        if self.strategy == Strategy::Whole {
            program.wait_stream(on, stream);
            self.issue(program, Collective::AllReduce, whole);
            program.wait_stream(stream, on);
        } else {
            // With two sets the part is a place in the block.
            let mut take = || program.alloc(part, stream, Category::ShardedGradient, "reduce_scatter_tensor");
            let block = if self.double_buffer { None } else { Some(take()) };
            program.wait_stream(on, stream);
            self.issue(program, Collective::ReduceScatter, whole);
            program.wait_stream(stream, on);
            let read = Bytes(2 * part.0);
            let work = Work::Memory { kind: MemoryKind::Elementwise, read, written: part };
            program.launch(stream, "aten.add_", work, Dispatch::EagerForward);
            block.into_iter().for_each(|block| program.free(block));
        }
        let done = program.record(stream);
        self.queue.push_back((done, at));
    }

    /// Gradients in bf16 are divided by the replicas beforehand; of others NCCL's sum does it (`gradient_reduce_div_fusion`).
    fn scale(&self, program: &mut Builder, bytes: Bytes, stream: StreamId) {
        if self.dtype == DType::Bf16 {
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: bytes, written: bytes };
            program.launch(stream, "aten.mul_", work, Dispatch::EagerForward);
        }
    }

    fn issue(&self, program: &mut Builder, kind: Collective, bytes: Bytes) {
        let (group, on) = self.lanes.reduced_over;
        program.collective(on, Comm { kind, group, bytes, dtype: self.dtype });
    }
}
