//! The step of ZeRO-3 on the rank's part of all parameters (`stage3.py`, `step`), group by group of `sub_group_size` elements:
//! small parameters are let go of, a norm, gradients in fp32 and scaled, the optimizer, parts in bf16; then small parameters are
//! gathered again.

use super::flat::{BF16, elementwise};
use super::update::{made, reduced};
use super::{Job, gathered_elements};
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, Instr, MemoryKind, Pass, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{self, Optimizer};
use crate::units::Bytes;

/// What the rank holds, and how it is stepped.
pub(super) struct SubGroups {
    optimizer: Optimizer,
    clip: bool,
    group: GroupId,
    ranks: u32,
    bucket: u64,
    /// Elements of the rank's part of each parameter.
    parts: Vec<u64>,
    /// Elements of each group of parts.
    groups: Vec<u64>,
    /// Parameters that stay gathered.
    small: Vec<u64>,
    stay: Vec<BufferId>,
    /// Of the chip.
    multiprocessors: u32,
}

impl SubGroups {
    pub(super) fn new(job: &Job, elements: &[u64], group: GroupId) -> SubGroups {
        let zero = job.zero;
        let parts: Vec<u64> = elements
            .iter()
            .map(|&elements| gathered_elements(&[elements], zero.ranks) / u64::from(zero.ranks))
            .collect();
        let mut groups = vec![];
        let mut open = 0;
        for part in &parts {
            open += part;
            if open >= zero.sub_group {
                groups.push(std::mem::take(&mut open));
            }
        }
        groups.extend((open > 0).then_some(open));
        SubGroups {
            optimizer: job.whole.optimizer,
            clip: job.whole.clip,
            group,
            ranks: zero.ranks,
            bucket: zero.bucket,
            parts,
            groups,
            small: elements.iter().copied().filter(|&elements| elements <= zero.gathering.persist).collect(),
            stay: vec![],
            multiprocessors: job.whole.eager.multiprocessors,
        }
    }

    /// Parts in bf16 of parameters and of gradients, in fp32 by group; the bucket; small parameters whole.
    pub(super) fn setup(&mut self, program: &mut Builder) {
        let own: u64 = self.parts.iter().sum();
        program.alloc(Bytes(own * BF16), COMPUTE, Category::Parameter, "bf16 partitions");
        for group in &self.groups {
            program.alloc(Bytes(group * DType::Fp32.bytes()), COMPUTE, Category::Parameter, "fp32 partition");
        }
        program.alloc(Bytes(own * BF16), COMPUTE, Category::ShardedGradient, "gradient partitions");
        program.alloc(Bytes(self.bucket * BF16), COMPUTE, Category::ReduceScatterInput, "contiguous gradients");
        let stay = |elements: &u64| {
            let bytes = Bytes(elements * BF16);
            program.alloc(bytes, COMPUTE, Category::UnshardedParameter, "persistent parameters")
        };
        self.stay = self.small.iter().map(stay).collect();
        program.alloc(Bytes(4), COMPUTE, Category::Buffer, "gradient norm");
    }

    /// `step`.
    pub(super) fn step(&self, program: &mut Builder) {
        let pass = program.set_pass(Pass::Optimizer);
        self.stay.iter().for_each(|&param| program.free(param));
        self.norm(program);
        let wide = DType::Fp32.bytes();
        let optimizer = self.optimizer;
        program.first_only(|program| optimizer::make_state(program, optimizer, &self.groups, wide));
        for &elements in &self.groups {
            let (narrow, wide) = (elements * BF16, elements * wide);
            let flat = program.alloc(Bytes(narrow), COMPUTE, Category::OptimizerTemporary, "flattened gradients");
            let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(narrow), written: Bytes(narrow) };
            program.launch(COMPUTE, "aten.cat", work, Dispatch::EagerForward);
            let gradient = made(program, "aten._to_copy", narrow, wide);
            program.free(flat);
            elementwise(program, COMPUTE, "aten.mul_", (wide, wide));
            optimizer::step(program, optimizer, &[elements], DType::Fp32.bytes());
            elementwise(program, COMPUTE, "aten.copy_", (wide, narrow));
            program.free(gradient);
        }
        self.stay.iter().for_each(|&buffer| program.push(Instr::Alloc { buffer }));
        for &elements in self.small.iter().filter(|_| self.ranks > 1) {
            let bytes = Bytes(gathered_elements(&[elements], self.ranks) * BF16);
            self.collective(program, Collective::AllGather, bytes, DType::Bf16);
        }
        program.set_pass(pass);
    }

    fn collective(&self, program: &mut Builder, kind: Collective, bytes: Bytes, dtype: DType) {
        program.collective(COMPUTE, Comm { kind, group: self.group, bytes, dtype });
    }

    /// `_get_norm_groups`: of each part in fp64, and of those of a group their sum over all ranks.
    fn norm(&self, program: &mut Builder) {
        let mut parts = self.parts.iter();
        for &elements in &self.groups {
            let (mut left, mut norms) = (elements, vec![]);
            while left > 0
                && let Some(&part) = parts.next()
            {
                left -= part;
                let double = made(program, "aten._to_copy", part * BF16, 8 * part);
                norms.push(reduced(program, "aten.linalg_vector_norm", (part, 8), self.multiprocessors));
                program.free(double);
            }
            let numbers = 8 * norms.len() as u64;
            let stacked = made(program, "aten.stack", numbers, numbers);
            let squares = made(program, "aten.pow", numbers, numbers);
            program.free(stacked);
            program.free(squares);
            if self.ranks > 1 {
                self.collective(program, Collective::AllReduce, Bytes(8), DType::Fp32);
            }
            norms.into_iter().for_each(|norm| program.free(norm));
        }
        let numbers = 8 * self.groups.len() as u64;
        let stacked = made(program, "aten.stack", numbers, numbers);
        program.free(stacked);
        if self.clip {
            elementwise(program, COMPUTE, "aten.clamp", (4, 4));
        }
    }
}
