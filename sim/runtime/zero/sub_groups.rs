//! The step of ZeRO-3 on the rank's part of all parameters (`stage3.py`, `step`), group by group of `sub_group_size` elements:
//! small parameters are let go of, a norm, gradients in fp32 and scaled, the optimizer, parts in bf16; then small parameters are
//! gathered again.

use super::away::Gradients;
use super::disk::{self, PARAMETERS_BACK};
use super::elements::{groups, of_each};
use super::gather::gathered_elements;
use super::host::{self, bring};
use super::kernels::{BF16, elementwise, made, reduced};
use super::parts::Parts;
use super::{elements, files};
use crate::plan::zero::{Offload, ZeroPlan};
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, Instr, MemoryKind, Pass, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{Caller, Optimizer, Owned};
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
    /// Whether each parameter is in a file, and bytes of that.
    files: Vec<Option<u64>>,
    /// Groups, from the first, whose parameters lie flat.
    flat: usize,
    /// Elements of each group of parts.
    groups: Vec<u64>,
    /// The group of each part.
    of_each: Vec<usize>,
    /// Parameters that stay gathered, with their elements.
    small: Vec<(usize, u64)>,
    stay: Vec<BufferId>,
    offload: Offload,
    /// The first group that is stepped on the host.
    on_host: usize,
    /// Of the chip.
    sms: u32,
}

impl SubGroups {
    pub(super) fn new(job: &ZeroPlan, elements: &[u64], group: GroupId) -> SubGroups {
        let zero = job.zero;
        let parts = elements::parts(&zero, elements);
        let groups = groups(&parts, zero.sub_group);
        SubGroups {
            files: {
                let files = files::of(&zero, elements).into_iter().zip(elements);
                files.map(|(file, &elements)| file.then(|| files::bytes(&zero, elements))).collect()
            },
            flat: files::in_memory(&zero, &groups),
            of_each: of_each(&parts, zero.sub_group),
            offload: zero.offload,
            on_host: zero.offload.first_on_host(groups.len()),
            optimizer: job.whole.optimizer,
            clip: job.whole.clip,
            group,
            ranks: zero.ranks,
            bucket: zero.bucket * zero.reduced().bytes(),
            parts,
            groups,
            small: elements
                .iter()
                .copied()
                .enumerate()
                .filter(|&(_, elements)| elements <= zero.gathering.persist)
                .collect(),
            stay: vec![],
            sms: job.whole.eager.sms,
        }
    }

    /// Parts in bf16 of parameters and of gradients, in fp32 by group; the bucket; small parameters whole.
    pub(super) fn setup(&mut self, program: &mut Builder) {
        let own: u64 = self.parts.iter().sum();
        let away = self.offload.optimizer;
        if !self.offload.parameters {
            program.alloc(Bytes(own * BF16), COMPUTE, Category::Parameter, "bf16 partitions");
        }
        for group in &self.groups[..self.on_host] {
            let wide = Bytes(group * DType::Fp32.bytes());
            program.alloc(wide, COMPUTE, Category::Parameter, "fp32 partition");
            if away {
                program.alloc(wide, COMPUTE, Category::ShardedGradient, "fp32 gradient");
            }
        }
        if !away {
            program.alloc(Bytes(own * BF16), COMPUTE, Category::ShardedGradient, "gradient partitions");
        }
        program.alloc(Bytes(self.bucket), COMPUTE, Category::ReduceScatterInput, "contiguous gradients");
        let stay = |&(_, elements): &(usize, u64)| {
            let bytes = Bytes(elements * BF16);
            program.alloc(bytes, COMPUTE, Category::UnshardedParameter, "persistent parameters")
        };
        self.stay = self.small.iter().map(stay).collect();
        if !away {
            program.alloc(Bytes(4), COMPUTE, Category::Buffer, "gradient norm");
        }
    }

    /// `step`.
    pub(super) fn step(&self, program: &mut Builder, parts: &mut Parts) {
        let pass = program.set_pass(Pass::Optimizer);
        for (&buffer, &(param, _)) in self.stay.iter().zip(&self.small) {
            parts.keep(program, param);
            program.free(buffer);
        }
        match parts.away.as_mut().map(Gradients::take_norms) {
            None => self.norm(program),
            Some(norms) => self.norm_on_host(program, norms),
        }
        let optimizer = self.optimizer;
        let (here, on_host) = self.groups.split_at(self.on_host);
        let own: Vec<Owned> = here.iter().map(|&elements| Owned::flat(elements)).collect();
        program.first_only(|program| optimizer.make_state(program, Caller::Zero, &own, DType::Fp32.bytes()));
        here.iter().for_each(|&elements| self.step_here(program, elements));
        for (group, &elements) in on_host.iter().enumerate() {
            self.step_on_host(program, parts, (group + self.on_host, elements));
        }
        self.gather(program);
        parts.stepped(program);
        program.set_pass(pass);
    }

    /// A group that is stepped on the host; what is in files comes for it, and goes again.
    fn step_on_host(&self, program: &mut Builder, parts: &mut Parts, (group, elements): (usize, u64)) {
        let states = parts.away.as_mut().and_then(|away| away.states.as_mut());
        let mut states = states.filter(|states| states.holds(group));
        if let Some(states) = &mut states {
            states.read(program, group);
        }
        host::step(program, &self.optimizer, elements);
        if group >= self.flat {
            self.narrow(program, group);
        } else {
            host::narrow(program, elements);
        }
        if !self.offload.parameters {
            // Not pinned: the host waits.
            host::cross(program, COMPUTE, elements * BF16, false);
            program.wait_for_host(COMPUTE);
        }
        if let Some(states) = states {
            states.write(program, group);
        }
    }

    /// `_partitioned_params_swap_out`: parameters one by one, those in files last, which are then written.
    fn narrow(&self, program: &mut Builder, group: usize) {
        let own = || (0..self.parts.len()).filter(|&param| self.of_each[param] == group);
        own().filter(|&param| self.files[param].is_none()).for_each(|param| host::narrow(program, self.parts[param]));
        let files: Vec<u64> = own().filter_map(|param| self.files[param]).collect();
        own().filter(|&param| self.files[param].is_some()).for_each(|param| host::narrow(program, self.parts[param]));
        files.iter().for_each(|&bytes| disk::file(program, PARAMETERS_BACK, bytes, true));
        if !files.is_empty() {
            program.wait_for_host(PARAMETERS_BACK);
        }
    }

    /// A group that is stepped on the device. With an optimizer on the host its gradient is there in fp32.
    fn step_here(&self, program: &mut Builder, elements: u64) {
        let (narrow, wide) = (elements * BF16, elements * DType::Fp32.bytes());
        let gradient = (!self.offload.optimizer).then(|| {
            let flat = program.alloc(Bytes(narrow), COMPUTE, Category::OptimizerTemporary, "flattened gradients");
            let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(narrow), written: Bytes(narrow) };
            program.launch(COMPUTE, "aten.cat", work, Dispatch::EagerForward);
            let gradient = made(program, COMPUTE, "aten._to_copy", (narrow, wide));
            program.free(flat);
            gradient
        });
        elementwise(program, COMPUTE, "aten.mul_", (wide, wide));
        self.optimizer.step(program, Caller::Zero, &[Owned::flat(elements)], DType::Fp32.bytes());
        elementwise(program, COMPUTE, "aten.copy_", (wide, narrow));
        gradient.into_iter().for_each(|gradient| program.free(gradient));
    }

    /// Small parameters are gathered again.
    fn gather(&self, program: &mut Builder) {
        let whole = |elements| gathered_elements(&[elements], self.ranks) * BF16;
        let from_host = self.small.iter().filter(|_| self.offload.parameters);
        let parts: Vec<BufferId> =
            from_host.map(|&(_, elements)| bring(program, COMPUTE, whole(elements) / u64::from(self.ranks))).collect();
        self.stay.iter().for_each(|&buffer| program.push(Instr::Alloc { buffer }));
        for &(_, elements) in self.small.iter().filter(|_| self.ranks > 1) {
            self.collective(program, Collective::AllGather, Bytes(whole(elements)), DType::Bf16);
        }
        if !parts.is_empty() {
            program.wait_for_host(COMPUTE);
        }
        parts.into_iter().for_each(|part| program.free(part));
    }

    /// The same where each part's norm was taken when it crossed: the host reads the sum of each group, and that of all ranks.
    fn norm_on_host(&self, program: &mut Builder, norms: Vec<BufferId>) {
        for _ in &self.groups {
            program.wait_for_host(COMPUTE);
            if self.ranks > 1 {
                self.collective(program, Collective::AllReduce, Bytes(4), DType::Fp32);
            }
            program.wait_for_host(COMPUTE);
        }
        norms.into_iter().for_each(|norm| program.free(norm));
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
                let double = made(program, COMPUTE, "aten._to_copy", (part * BF16, 8 * part));
                norms.push(reduced(program, COMPUTE, "aten.linalg_vector_norm", (part, 8), self.sms));
                program.free(double);
            }
            let numbers = 8 * norms.len() as u64;
            let stacked = made(program, COMPUTE, "aten.stack", (numbers, numbers));
            let squares = made(program, COMPUTE, "aten.pow", (numbers, numbers));
            program.free(stacked);
            program.free(squares);
            if self.ranks > 1 {
                self.collective(program, Collective::AllReduce, Bytes(8), DType::Fp32);
            }
            norms.into_iter().for_each(|norm| program.free(norm));
        }
        let numbers = 8 * self.groups.len() as u64;
        let stacked = made(program, COMPUTE, "aten.stack", (numbers, numbers));
        program.free(stacked);
        if self.clip {
            elementwise(program, COMPUTE, "aten.clamp", (4, 4));
        }
    }
}
