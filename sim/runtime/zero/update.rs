//! The step of ZeRO-1 and 2 on the rank's own part (`stage_1_and_2.py`, `step`): numbers looked through, a norm, the
//! gradient in fp32 and scaled, the optimizer, and parameters gathered in one piece.

use super::flat::Shared;
use super::host;
use super::kernels::{BF16, elementwise, look_through, made, reduced};
use super::reduce::Partition;
use crate::plan::zero::ZeroPlan;
use crate::program::{BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Pass, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{Caller, Optimizer, Owned};
use crate::units::Bytes;

/// What the rank owns, and how it is stepped.
pub(super) struct Update {
    optimizer: Optimizer,
    clip: bool,
    group: GroupId,
    ranks: u64,
    /// Elements of the rank's part.
    each: u64,
    /// Whether it is stepped on the host.
    on_host: bool,
    /// Of the chip.
    sms: u32,
}

impl Update {
    pub(super) fn new(job: &ZeroPlan, partition: &Partition, group: GroupId) -> Update {
        let (optimizer, clip) = (job.whole.optimizer, job.whole.clip);
        let (ranks, sms) = (u64::from(job.zero.ranks), job.whole.eager.sms);
        let on_host = job.zero.offload.optimizer;
        Update { optimizer, clip, group, ranks, each: partition.each(), on_host, sms }
    }

    fn wide(&self) -> u64 {
        self.each * DType::Fp32.bytes()
    }

    fn all(&self) -> Bytes {
        Bytes(self.each * self.ranks * BF16)
    }

    /// Parameters lie flat, the rank's part of them also in fp32. What they are made of leaves its blocks to the cache:
    /// parameters of these elements as the model has them, the part in bf16, and a gradient of it.
    pub(super) fn setup(&self, program: &mut Builder, elements: &[u64]) {
        let name = "parameters before they lie flat";
        let take =
            |program: &mut Builder, bytes| program.alloc(Bytes(bytes), COMPUTE, Category::UnshardedParameter, name);
        let apart: Vec<BufferId> = elements.iter().map(|elements| take(program, elements * BF16)).collect();
        program.alloc(self.all(), COMPUTE, Category::UnshardedParameter, "flat bf16 parameters");
        apart.into_iter().for_each(|param| program.free(param));
        let part = take(program, self.each * BF16);
        if self.on_host {
            program.free(part);
            let largest = Bytes(elements.iter().max().map_or(0, |elements| elements * BF16));
            program.alloc(largest, COMPUTE, Category::ReduceScatterInput, "temp_grad_buffer_for_gpu_offload");
            return;
        }
        program.alloc(Bytes(self.wide()), COMPUTE, Category::Parameter, "fp32 partition");
        program.free(part);
        program.transient(Bytes(self.wide()), COMPUTE, Category::Parameter, "fp32 gradient");
        program.alloc(Bytes(4), COMPUTE, Category::Buffer, "gradient norm");
    }

    /// `step`.
    pub(super) fn step(&self, program: &mut Builder, gradients: &Shared) {
        let pass = program.set_pass(Pass::Optimizer);
        if self.on_host {
            self.step_on_host(program, gradients);
            program.set_pass(pass);
            return;
        }
        let pieces = gradients.0.borrow().own();
        self.overflow(program, &pieces);
        self.norm(program, &pieces);
        let flat = (pieces.len() > 1).then(|| {
            let bytes = self.each * BF16;
            let flat = program.alloc(Bytes(bytes), COMPUTE, Category::OptimizerTemporary, "flattened gradients");
            let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(bytes), written: Bytes(bytes) };
            program.launch(COMPUTE, "aten.cat", work, Dispatch::EagerForward);
            flat
        });
        let gradient = made(program, COMPUTE, "aten._to_copy", (self.each * BF16, self.wide()));
        let averaged = gradients.0.borrow_mut().averaged.take();
        flat.into_iter().chain(averaged).for_each(|buffer| program.free(buffer));
        // Scaled by one where nothing is clipped.
        elementwise(program, COMPUTE, "aten.mul_", (self.wide(), self.wide()));
        let (optimizer, own, element) = (self.optimizer, [Owned::flat(self.each)], DType::Fp32.bytes());
        program.first_only(|program| optimizer.make_state(program, Caller::Zero, &own, element));
        optimizer.step(program, Caller::Zero, &own, element);
        program.free(gradient);
        elementwise(program, COMPUTE, "aten.copy_", (self.wide(), self.each * BF16));
        self.gather(program);
        program.set_pass(pass);
    }

    /// `all_gather_dp_groups`.
    fn gather(&self, program: &mut Builder) {
        if self.ranks > 1 {
            self.collective(program, Collective::AllGather, self.all(), DType::Bf16);
        }
    }

    /// The same where gradients are in the host's memory, looked through and their norms taken: those are read one by one.
    fn step_on_host(&self, program: &mut Builder, gradients: &Shared) {
        let norms = gradients.0.borrow_mut().take_norms();
        if self.ranks > 1 {
            self.collective(program, Collective::AllReduce, Bytes(1), DType::Fp8);
        }
        program.wait_for_host(COMPUTE);
        norms.iter().for_each(|_| program.wait_for_host(COMPUTE));
        if self.ranks > 1 {
            self.collective(program, Collective::AllReduce, Bytes(4), DType::Fp32);
        }
        program.wait_for_host(COMPUTE);
        host::step(program, &self.optimizer, self.each);
        host::narrow(program, self.each);
        norms.into_iter().for_each(|norm| program.free(norm));
        host::cross(program, COMPUTE, self.each * BF16, false);
        self.gather(program);
    }

    fn collective(&self, program: &mut Builder, kind: Collective, bytes: Bytes, dtype: DType) {
        program.collective(COMPUTE, Comm { kind, group: self.group, bytes, dtype });
    }

    /// `check_overflow`: piece by piece; then the host waits for the answer.
    fn overflow(&self, program: &mut Builder, pieces: &[u64]) {
        let count = program.alloc(Bytes(4), COMPUTE, Category::OptimizerTemporary, "aten.zeros");
        for &elements in pieces {
            look_through(program, COMPUTE, elements, self.sms);
        }
        program.free(count);
        if self.ranks > 1 {
            self.collective(program, Collective::AllReduce, Bytes(1), DType::Fp8);
        }
        program.wait_for_host(COMPUTE);
    }

    /// `scaled_global_norm`: of each piece in fp64.
    fn norm(&self, program: &mut Builder, pieces: &[u64]) {
        let norms: Vec<BufferId> = pieces
            .iter()
            .map(|&elements| {
                let double = made(program, COMPUTE, "aten._to_copy", (elements * BF16, 8 * elements));
                let norm = reduced(program, COMPUTE, "aten.linalg_vector_norm", (elements, 8), self.sms);
                program.free(double);
                norm
            })
            .collect();
        let numbers = 8 * norms.len() as u64;
        let squares = ["aten.stack", "aten.pow"].map(|name| made(program, COMPUTE, name, (numbers, numbers)));
        squares.into_iter().for_each(|number| program.free(number));
        norms.into_iter().for_each(|norm| program.free(norm));
        if self.ranks > 1 {
            self.collective(program, Collective::AllReduce, Bytes(4), DType::Fp32);
        }
        if self.clip {
            elementwise(program, COMPUTE, "aten.clamp", (4, 4));
        }
    }
}
