//! Megatron-Core: tensor, sequence, context, pipeline and data parallelism as its own training loop issues them.
//!
//! ```text
//! Job ─► Schedule ─► lower() ─► for each pipeline rank: Rank ─► Program
//!                                   │  Chunk: forward and backward of one micro-batch on one stage
//!                                   │  P2p: messages between stages      Data: buckets of gradients and parameters
//!                                   └─ optimizer
//! ```
//!
//! Megatron-DeepSpeed runs the same modules in DeepSpeed's pipeline engine, with messages of its own (`deepspeed`).

mod blocks;
mod buckets;
mod chunk;
mod data;
mod deepspeed;
mod experts;
mod groups;
mod job;
mod latent;
mod layers;
mod messages;
mod modules;
mod optimizer;
mod p2p;
mod rank;
mod step;

pub use super::eager::DISPATCHERS;
pub use chunk::{Chunk, ChunkFrame, ChunkParam, LossReport};
pub use job::{
    Block, Core, Dispatcher, Engine, Fp8Recipe, Gradients, Implementation, Job, Matmuls, Mesh, Mixture, Optimizer,
    Pipeline, Recompute,
};
pub use modules::Modules;

use rayon::prelude::*;

use super::Flight;
use crate::schedule::{self, Kind, Lowering, Schedule, ScheduleError};

/// The job's schedule; an error if it cannot have this shape.
pub fn schedule(job: &Job) -> Result<Schedule, ScheduleError> {
    let shape = schedule::Shape {
        ranks: job.mesh.pp,
        virtual_stages: job.pipeline.virtual_stages,
        microbatches: job.micro_batches,
    };
    job.pipeline.schedule.build(shape)
}

/// Whether a schedule's backwards come in halves, as those of zero-bubble schedules do.
fn halves(schedule: &Schedule) -> bool {
    schedule.lists.all().iter().any(|action| action.kind == Kind::Weight)
}

/// What of a job has no rules here, if anything.
pub fn refuses(job: &Job) -> Option<&'static str> {
    // `WeightGradStore.is_supported` of sail-sg/zero-bubble-pipeline-parallelism.
    let split = || {
        let engine = job.block.implementation == Implementation::TransformerEngine;
        let cases = [
            (engine, "a zero-bubble schedule of Transformer Engine's modules"),
            (!job.gradients.fused_accumulation, "a zero-bubble schedule without gradient_accumulation_fusion"),
            (job.gradients.overlap_reduce, "a zero-bubble schedule with overlap_grad_reduce"),
        ];
        let what = cases.into_iter().find(|(applies, _)| *applies).map(|(_, what)| what)?;
        halves(&schedule(job).ok()?).then_some(what)
    };
    Chunk::refuses(job).or_else(split)
}

/// The programs of all pipeline ranks.
///
/// # Panics
///
/// If the job's schedule cannot have its shape: [`schedule()`] says so before.
pub fn compile(job: &Job) -> Flight {
    let schedule = schedule(job).expect("a job's schedule was built when the job was decided");
    let lowering = Lowering { overlap_p2p_comm: job.pipeline.overlap_p2p, ..Lowering::default() };
    let lists = schedule::lower(&schedule, &lowering).expect("a schedule that was built can be lowered");
    let program = |rank| step::Rank::program(job, &schedule, &lists, rank);
    Flight::in_turn((0..job.mesh.pp).into_par_iter().map(program).collect())
}
