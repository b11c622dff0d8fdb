//! From gradients to parameters (`trainer.py`, `training_step`; `optim/{clip_grads,zero,gradient_accumulator}.py`): tied
//! gradients, clipping, AdamW on the rank's slices, and the slices' way to everyone.
//!
//! After ZeRO's gather every slice of every parameter of every replica is copied to its place on its own: replicas ×
//! parameters kernels, which the host takes longer to launch than the network to bring.

use crate::plan::nanotron::NanotronPlan;
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Pass, StreamId, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{Asked, Caller, How, Optimizer, Owned};
use crate::units::Bytes;

/// Communicators that an update uses, all on one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub(super) tensor: GroupId,
    pub(super) data: GroupId,
    pub(super) embedding: GroupId,
    /// Over which norms are summed; the model's ranks, taken as all.
    pub(super) world: GroupId,
    pub(super) stream: StreamId,
}

/// What a rank updates.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) dtype: DType,
    /// Its parameters, and elements of all.
    pub(super) params: Vec<Owned>,
    pub(super) total: u64,
    /// Elements of parameters that every tensor-parallel rank has and makes a part of the gradient of: norms.
    pub(super) partial: u64,
    /// Elements of an embedding that another stage has too.
    pub(super) shared: u64,
    pub(super) replicas: u64,
    pub(super) alone: bool,
    pub(super) zero: bool,
    /// Whether the rank has the loss.
    pub(super) last: bool,
    pub(super) groups: Groups,
}

impl Update {
    /// Elements of each parameter.
    fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.params.iter().map(Owned::elements)
    }

    /// The rank's slice of each parameter, flat, which it steps.
    fn slices(&self) -> impl Iterator<Item = Owned> + '_ {
        let parts = if self.zero { self.replicas } else { 1 };
        self.params.iter().map(move |param| Owned::stretch(param.shape, param.role, param.elements().div_ceil(parts)))
    }

    fn own(&self) -> u64 {
        self.slices().map(|slice| slice.elements()).sum()
    }

    /// Parameters, their gradients in fp32, what is stepped in fp32.
    pub(super) fn setup(&self, program: &mut Builder, job: &NanotronPlan) {
        for elements in self.sizes() {
            program.alloc(Bytes(elements * self.dtype.bytes()), COMPUTE, Category::Parameter, "weight");
        }
        program.alloc(Bytes(4 * self.total), COMPUTE, Category::ShardedGradient, "fp32 gradients");
        program.alloc(Bytes(4 * self.own()), COMPUTE, Category::OptimizerState, "fp32 parameters");
        if job.is_ddp() {
            let bytes = Bytes(self.total * self.dtype.bytes());
            program.alloc(bytes, COMPUTE, Category::UnshardedGradient, "DDP buckets");
        }
    }

    /// All of it, once gradients of this rank are in the buffer and, under DDP, reduced.
    pub(super) fn run(&self, program: &mut Builder) {
        let pass = program.set_pass(Pass::Optimizer);
        if self.zero && self.replicas > 1 {
            self.exchange(program, Collective::AllReduce, self.groups.data, 4 * self.total);
        }
        if self.partial > 0 {
            self.exchange(program, Collective::AllReduce, self.groups.tensor, 4 * self.partial);
        }
        if self.shared > 0 {
            self.exchange(program, Collective::AllReduce, self.groups.embedding, 4 * self.shared);
        }
        self.clip(program);
        if self.last && self.replicas > 1 {
            self.exchange(program, Collective::AllReduce, self.groups.data, 4);
        }
        self.adam(program);
        if self.zero && self.replicas > 1 {
            self.gather(program);
        }
        kernel(program, "aten.zero_", MemoryKind::Copy, 0, 4 * self.total);
        program.host(Dispatch::StepOverhead, 1);
        // `dist.barrier()`, then the time is taken.
        if !self.alone {
            self.exchange(program, Collective::AllReduce, self.groups.world, 4);
        }
        program.wait_for_host(COMPUTE);
        program.set_pass(pass);
    }

    /// A collective that what follows waits for.
    fn exchange(&self, program: &mut Builder, kind: Collective, group: GroupId, bytes: u64) {
        let dtype = if kind == Collective::AllReduce { DType::Fp32 } else { self.dtype };
        program.wait_stream(self.groups.stream, COMPUTE);
        program.collective(self.groups.stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
        program.wait_stream(COMPUTE, self.groups.stream);
    }

    /// Norms one by one, their sum over ranks, and a product for each whether or not it is too large. The host waits for
    /// nothing.
    fn clip(&self, program: &mut Builder) {
        for elements in self.sizes() {
            kernel(program, "aten.linalg_vector_norm", MemoryKind::Elementwise, 4 * elements, 4);
        }
        kernel(program, "aten.stack", MemoryKind::Copy, 4 * self.params.len() as u64, 4 * self.params.len() as u64);
        for name in ["aten.linalg_vector_norm", "aten.pow"] {
            kernel(program, name, MemoryKind::Elementwise, 4 * self.params.len() as u64, 4);
        }
        if !self.alone {
            self.exchange(program, Collective::AllReduce, self.groups.world, 4);
        }
        for name in ["aten.pow_", "aten.add", "aten.reciprocal", "aten.mul", "aten.clamp"] {
            kernel(program, name, MemoryKind::Elementwise, 4, 4);
        }
        for elements in self.sizes() {
            kernel(program, "aten.mul_", MemoryKind::Elementwise, 4 * elements, 4 * elements);
        }
    }

    /// AdamW in one kernel over all slices in fp32, which are then copied into the parameters one by one.
    fn adam(&self, program: &mut Builder) {
        let (slices, element): (Vec<Owned>, u64) = (self.slices().collect(), DType::Fp32.bytes());
        let adamw = Optimizer::of(Caller::Nanotron, &Asked::plain(How::Fused));
        program.first_only(|program| adamw.make_state(program, Caller::Nanotron, &slices, element));
        adamw.step(program, Caller::Nanotron, &slices, element);
        for elements in slices.iter().map(Owned::elements) {
            kernel(program, "aten.copy_", MemoryKind::Copy, 4 * elements, elements * self.dtype.bytes());
        }
    }

    /// `all_gather_coalesced` of everything at once: own slices laid side by side, and those of every replica too, to have
    /// somewhere to gather into; PyTorch gathers into one block and copies it there; then slice by slice into parameters.
    fn gather(&self, program: &mut Builder) {
        let part = self.own() * self.dtype.bytes();
        let (replicas, params) = (self.replicas, self.params.len() as u64);
        program.host(Dispatch::Extra, u32::try_from(replicas * params).unwrap_or(u32::MAX));
        let block = |program: &mut Builder, bytes, name| -> BufferId {
            program.alloc(Bytes(bytes), COMPUTE, Category::OptimizerTemporary, name)
        };
        let own = block(program, part, "aten.cat");
        kernel(program, "aten.cat", MemoryKind::Copy, part, part);
        let outputs: Vec<BufferId> = (0..replicas)
            .map(|_| {
                let output = block(program, part, "aten.cat");
                kernel(program, "aten.cat", MemoryKind::Copy, part, part);
                output
            })
            .collect();
        let flat = block(program, replicas * part, "all_gather");
        self.exchange(program, Collective::AllGather, self.groups.data, replicas * part);
        for _ in 0..replicas {
            kernel(program, "aten.copy_", MemoryKind::Copy, part, part);
        }
        program.free(flat);
        let slices: Vec<u64> = self.slices().map(|slice| slice.elements() * self.dtype.bytes()).collect();
        for _ in 0..replicas {
            for &bytes in &slices {
                kernel(program, "aten.copy_", MemoryKind::Copy, bytes, bytes);
            }
        }
        for buffer in outputs.into_iter().chain([own]) {
            program.free(buffer);
        }
    }
}

fn kernel(program: &mut Builder, name: &'static str, kind: MemoryKind, read: u64, written: u64) {
    let work = Work::Memory { kind, read: Bytes(read), written: Bytes(written) };
    program.launch(COMPUTE, name, work, Dispatch::EagerForward);
}
