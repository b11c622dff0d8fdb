//! The optimizer's step: norm of the gradients, clipping, Adam on the rank's shards in fp32, and back into the parameters
//! (`core/optimizer/optimizer.py`, `distrib_optimizer.py`, `clip_grads.py`, 0.16.1).

use super::data::read_back;
use super::job::Job;
use crate::program::{
    BufferId, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, Instr, MemoryKind, Pass, StreamId, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// Elements in one launch of a multi-tensor kernel: 2¹⁶ a chunk, 320 chunks (Apex's and Transformer Engine's
/// `multi_tensor_apply.cuh`).
const ELEMENTS_OF_A_LAUNCH: u64 = 65_536 * 320;

/// What a rank steps.
#[derive(Debug)]
pub struct Shards {
    /// Elements of each parameter's part.
    sizes: Vec<u64>,
    total: u64,
}

impl Shards {
    /// From the parts' elements.
    pub fn new(sizes: Vec<u64>) -> Shards {
        Shards { total: sizes.iter().sum(), sizes }
    }

    /// One multi-tensor kernel over all shards, reading and writing so many bytes an element.
    fn foreach(&self, program: &mut Builder, name: &'static str, read: u64, written: u64) {
        let work = Work::Memory {
            kind: MemoryKind::Foreach,
            read: Bytes(read * self.total),
            written: Bytes(written * self.total),
        };
        program.launch(COMPUTE, name, work, Dispatch::EagerForward);
        let more = u32::try_from(self.total / ELEMENTS_OF_A_LAUNCH).unwrap_or(u32::MAX);
        program.host(Dispatch::Foreach, more);
    }

    fn alloc(&self, program: &mut Builder, dtype: DType, name: &'static str) {
        for &elements in &self.sizes {
            program.alloc(Bytes(elements * dtype.bytes()), COMPUTE, Category::OptimizerState, name);
        }
    }

    /// Master parameters, made with the optimizer.
    pub fn take_masters(&self, program: &mut Builder, job: &Job) {
        self.alloc(program, job.optimizer.master, "main_param");
    }

    /// Copies of main gradients in fp32, made by each step and kept until the next begins; none where main gradients are
    /// in fp32 themselves (`main_grad.float()`).
    pub fn take_copies(&self, program: &mut Builder, job: &Job) -> Vec<BufferId> {
        if job.gradients.dtype == DType::Fp32 {
            return vec![];
        }
        let take =
            |&elements: &u64| program.alloc(Bytes(4 * elements), COMPUTE, Category::ShardedGradient, "aten._to_copy");
        self.sizes.iter().map(take).collect()
    }

    /// Moments, made by the first step.
    pub fn take_moments(&self, program: &mut Builder, job: &Job) {
        self.alloc(program, job.optimizer.first_moment, "exp_avg");
        self.alloc(program, job.optimizer.second_moment, "exp_avg_sq");
    }
}

/// One step. `world` is the group that norms are summed over, on `stream`.
pub fn step(
    program: &mut Builder,
    job: &Job,
    (shards, copies): (&Shards, &[BufferId]),
    (world, stream): (GroupId, StreamId),
) {
    let pass = program.set_pass(Pass::Optimizer);
    let gradient = job.gradients.dtype.bytes();
    program.host(Dispatch::OptimizerParam, shards.sizes.len() as u32);
    if !copies.is_empty() {
        for (&kept, made) in copies.iter().zip(shards.take_copies(program, job)) {
            program.push(Instr::Rename { from: made, to: kept });
        }
        shards.foreach(program, "aten._to_copy", gradient, 4);
    }
    let all_reduce = |program: &mut Builder| {
        program.wait_stream(stream, COMPUTE);
        let comm = Comm { kind: Collective::AllReduce, group: world, bytes: Bytes(4), dtype: DType::Fp32 };
        program.collective(stream, comm);
        program.wait_stream(COMPUTE, stream);
    };
    let alone = job.mesh.ranks() == 1;
    if job.dtype == DType::Fp16 {
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
    let (master, moments) =
        (job.optimizer.master.bytes(), job.optimizer.first_moment.bytes() + job.optimizer.second_moment.bytes());
    let state = master + moments;
    if job.optimizer.fused {
        shards.foreach(program, "fused_adam", state + 4, state);
    } else {
        unfused(program, shards, state);
    }
    // Parameters take what the masters have become.
    shards.foreach(program, "amp_C.multi_tensor_scale", master, job.dtype.bytes());
    program.set_pass(pass);
}

/// `torch.optim.AdamW` with `foreach`: pass by pass, one temporary for each parameter.
fn unfused(program: &mut Builder, shards: &Shards, state: u64) {
    let element = state / 3;
    let each = |program: &mut Builder, name, reads: u64, writes: u64| {
        shards.foreach(program, name, reads * element, writes * element);
    };
    each(program, "aten._foreach_mul_", 1, 1);
    each(program, "aten._foreach_lerp_", 2, 1);
    each(program, "aten._foreach_mul_", 1, 1);
    each(program, "aten._foreach_addcmul_", 2, 1);
    let take = |program: &mut Builder| -> Vec<_> {
        let roots = shards.sizes.iter().map(|&elements| {
            program.alloc(Bytes(4 * elements), COMPUTE, Category::OptimizerTemporary, "aten._foreach_sqrt")
        });
        roots.collect()
    };
    let roots = take(program);
    each(program, "aten._foreach_sqrt", 1, 1);
    each(program, "aten._foreach_div_", 1, 1);
    each(program, "aten._foreach_add_", 1, 1);
    each(program, "aten._foreach_addcdiv_", 3, 1);
    for root in roots.into_iter().rev() {
        program.free(root);
    }
}
