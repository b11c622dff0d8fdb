//! The optimizer's step: norm of the gradients, clipping, Adam on the rank's shards in fp32, and back into the parameters
//! (`core/optimizer/optimizer.py`, `distrib_optimizer.py`, `clip_grads.py`, 0.16.1).

use super::data::read_back;
use crate::model::megatron::Fp8;
use crate::plan::megatron::{Fp8Recipe, Matmuls, MegatronPlan, Optimizer};
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Pass, StreamId, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{Asked, Caller, How, Launches, Optimizer as Stepped, Owned};
use crate::units::Bytes;

impl Optimizer {
    /// What steps parameters of a type.
    fn stepped(&self, dtype: DType) -> Stepped {
        let asked = Asked {
            moments: [self.first_moment, self.second_moment],
            master: self.master_bytes(),
            rest: if self.remainders { dtype.bytes() } else { 0 },
            ..Asked::plain(if self.fused { How::Fused } else { How::Foreach })
        };
        Stepped::of(Caller::Megatron, &asked)
    }
}

/// A rank's part of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The part.
    pub own: Owned,
    /// Whether the parameter is kept in fp8.
    pub fp8: bool,
}

/// What a rank steps.
#[derive(Debug)]
pub struct Shards {
    /// Whether each part is of a parameter in fp8.
    in_fp8: Vec<bool>,
    /// The parts.
    params: Vec<Owned>,
    total: u64,
    /// Parameters in fp8 that the rank has, whoever steps them.
    weights: u64,
}

impl Shards {
    /// From the parts, and how many parameters are in fp8, whoever steps them.
    pub fn new(parts: Vec<Part>, weights: u64) -> Shards {
        let (params, in_fp8): (Vec<Owned>, _) = parts.into_iter().map(|part| (part.own, part.fp8)).unzip();
        Shards { total: params.iter().map(Owned::elements).sum(), params, in_fp8, weights }
    }

    /// Elements of each part.
    fn sizes(&self) -> impl Iterator<Item = u64> {
        self.params.iter().map(Owned::elements)
    }

    /// Elements of each part in fp8.
    fn fp8(&self) -> impl Iterator<Item = u64> {
        self.sizes().zip(&self.in_fp8).filter(|(_, fp8)| **fp8).map(|(elements, _)| elements)
    }

    /// One multi-tensor kernel over all shards, reading and writing so many bytes an element.
    fn foreach(&self, program: &mut Builder, name: &'static str, read: u64, written: u64) {
        foreach(program, name, self.total, [read, written]);
    }

    /// One kernel for each shard, reading and writing so many bytes an element.
    fn each(&self, program: &mut Builder, name: &'static str, bytes: [u64; 2]) {
        for elements in self.sizes() {
            let [read, written] = bytes.map(|bytes| Bytes(bytes * elements));
            let work = Work::Memory { kind: MemoryKind::Elementwise, read, written };
            program.launch(COMPUTE, name, work, Dispatch::EagerForward);
        }
    }

    /// Master parameters, made with the optimizer.
    pub fn take_masters(&self, program: &mut Builder, job: &MegatronPlan) {
        for elements in self.sizes() {
            let bytes = Bytes(elements * job.optimizer.master_bytes());
            program.alloc(bytes, COMPUTE, Category::OptimizerState, "main_param");
        }
    }

    /// Copies of main gradients in fp32, made by each step and kept until the next begins; none where main gradients are
    /// in fp32 themselves (`main_grad.float()`).
    pub fn take_copies(&self, program: &mut Builder, job: &MegatronPlan) -> Vec<BufferId> {
        if job.gradients.dtype == DType::Fp32 {
            return vec![];
        }
        let take =
            |elements: u64| program.alloc(Bytes(4 * elements), COMPUTE, Category::ShardedGradient, "aten._to_copy");
        self.sizes().map(take).collect()
    }

    /// Moments, made by the first step.
    pub fn take_moments(&self, program: &mut Builder, job: &MegatronPlan) {
        let element = DType::Fp32.bytes();
        job.optimizer.stepped(job.split.dtype).make_state(program, Caller::Megatron, &self.params, element);
    }
}

/// One multi-tensor kernel over so many elements, reading and writing so many bytes of each.
fn foreach(program: &mut Builder, name: &'static str, elements: u64, [read, written]: [u64; 2]) {
    let (read, written) = (Bytes(read * elements), Bytes(written * elements));
    program.launch(COMPUTE, name, Work::Memory { kind: MemoryKind::Foreach, read, written }, Dispatch::EagerForward);
    program.host(Dispatch::Foreach, Launches::OfAll.more(&[Owned::flat(elements)]));
}

/// The masters' way into parameters in fp8, one by one: through the activations' type, as if the parameter had been cast
/// from that in forward, all of them at once; and with a maximum first under tensorwise scaling. Under delayed scaling
/// the maxima that the casts have found are reduced over the replicas afterwards, as each has cast a part
/// (`transformer_engine/pytorch/tensor/utils.py`, `cast_master_weights_to_fp8`).
fn to_fp8(program: &mut Builder, job: &MegatronPlan, shards: &Shards, (data, stream): (GroupId, StreamId)) {
    let (master, plain, fp8) = (job.optimizer.master.bytes(), job.split.dtype.bytes(), DType::Fp8.bytes());
    let tensorwise = matches!(job.split.matmuls, Matmuls::Fp8 { recipe: Fp8Recipe::Tensorwise, .. });
    let parts = || shards.fp8();
    // Every parameter of the rank has a maximum, stepped here or elsewhere.
    let maxima = shards.weights * DType::Fp32.bytes();
    let elementwise = |program: &mut Builder, name, read: u64, written: u64| {
        let (read, written) = (Bytes(read), Bytes(written));
        let work = Work::Memory { kind: MemoryKind::Elementwise, read, written };
        program.launch(COMPUTE, name, work, Dispatch::EagerForward);
    };
    let reduce = |program: &mut Builder| {
        if job.split.mesh.dp * job.split.mesh.cp > 1 {
            program.wait_stream(stream, COMPUTE);
            let comm = Comm { kind: Collective::AllReduce, group: data, bytes: Bytes(maxima), dtype: DType::Fp32 };
            program.collective(stream, comm);
            program.wait_stream(COMPUTE, stream);
        }
    };
    let mut casts = vec![];
    for elements in parts() {
        casts.push(program.alloc(Bytes(elements * plain), COMPUTE, Category::OptimizerTemporary, "aten._to_copy"));
        elementwise(program, "aten._to_copy", elements * master, elements * plain);
    }
    if tensorwise {
        for elements in parts() {
            elementwise(program, "te.compute_amax", elements * plain, DType::Fp32.bytes());
        }
        reduce(program);
        elementwise(program, "te.multi_tensor_compute_scale_and_scale_inv", maxima, 2 * maxima);
    }
    for elements in parts() {
        elementwise(program, "te.cast", elements * plain, elements * fp8);
    }
    if !tensorwise {
        elementwise(program, "te.multi_tensor_scale", maxima, maxima);
        reduce(program);
        // Maxima go back, and scales become their inverses.
        for name in ["te.multi_tensor_scale", "te.multi_tensor_scale", "aten.reciprocal", "te.multi_tensor_scale"] {
            elementwise(program, name, maxima, maxima);
        }
    }
    for cast in casts.into_iter().rev() {
        program.free(cast);
    }
}

/// Copies main gradients that are not in fp32 to it: a kernel for all, or under Megatron-FSDP one for each.
pub fn widen(program: &mut Builder, job: &MegatronPlan, (shards, copies): (&Shards, &[BufferId])) {
    if copies.is_empty() {
        return;
    }
    for (&kept, made) in copies.iter().zip(shards.take_copies(program, job)) {
        program.rename(made, kept);
    }
    let gradient = job.gradients.dtype.bytes();
    if job.fsdp.is_some() {
        shards.each(program, "aten._to_copy", [gradient, DType::Fp32.bytes()]);
    } else {
        shards.foreach(program, "aten._to_copy", gradient, DType::Fp32.bytes());
    }
}

/// One step. `world` is the group that norms are summed over, `data` that of the replicas, both on `stream`.
pub fn step(
    program: &mut Builder,
    job: &MegatronPlan,
    (shards, copies): (&Shards, &[BufferId]),
    ([world, data], stream): ([GroupId; 2], StreamId),
) {
    let pass = program.set_pass(Pass::Optimizer);
    program.host(Dispatch::OptimizerParam, shards.params.len() as u32);
    if job.fsdp.is_none() {
        widen(program, job, (shards, copies));
    }
    let all_reduce = |program: &mut Builder| {
        program.wait_stream(stream, COMPUTE);
        let comm = Comm { kind: Collective::AllReduce, group: world, bytes: Bytes(4), dtype: DType::Fp32 };
        program.collective(stream, comm);
        program.wait_stream(COMPUTE, stream);
    };
    let alone = job.split.mesh.ranks() == 1;
    if job.split.dtype == DType::Fp16 {
        // Dynamic loss scaling: gradients are divided by the scale, and everyone learns of overflows.
        shards.foreach(program, "amp_C.multi_tensor_scale", 4, 4);
        if !alone {
            all_reduce(program);
        }
        read_back(program, "aten._local_scalar_dense");
    }
    // The norm is taken for the log, whether or not it clips.
    shards.foreach(program, "amp_C.multi_tensor_l2norm", 4, 0);
    if !alone {
        all_reduce(program);
    }
    read_back(program, "aten._local_scalar_dense");
    if job.optimizer.clip {
        shards.foreach(program, "amp_C.multi_tensor_scale", 4, 4);
    }
    let stepped = job.optimizer.stepped(job.split.dtype);
    stepped.kernels(program, Caller::Megatron, &shards.params, DType::Fp32.bytes());
    if job.optimizer.remainders {
        // Parameters are read and written with the rest of their masters, so nothing is copied to them.
        program.set_pass(pass);
        return;
    }
    // Parameters take what the masters have become.
    let master = job.optimizer.master_bytes();
    let elements: u64 = shards.fp8().sum();
    let plain = shards.total - elements;
    if job.fsdp.is_some() {
        // `copy_main_weights_to_model_weights`.
        shards.each(program, "aten.copy_", [master, job.split.dtype.bytes()]);
    } else if job.split.matmuls.fp8().is_some_and(Fp8::gathers_wide) {
        // `_copy_main_params_to_param_buffer`.
        shards.each(program, "aten.copy_", [master, job.split.dtype.bytes()]);
        program.set_pass(pass);
        return;
    } else if plain > 0 {
        foreach(program, "amp_C.multi_tensor_scale", plain, [master, job.split.dtype.bytes()]);
    }
    if elements > 0 {
        to_fp8(program, job, shards, (data, stream));
    }
    program.set_pass(pass);
}
