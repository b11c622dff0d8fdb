//! Megatron-Core: tensor, sequence, context, pipeline and data parallelism as its own training loop issues them.
//!
//! ```text
//! MegatronPlan ─► Schedule ─► lower() ─► for each pipeline rank: Rank ─► Program
//!                                            │  Chunk: forward and backward of one micro-batch on one stage
//!                                            │  P2p: messages between stages      Data: buckets of gradients and parameters
//!                                            └─ optimizer
//! ```
//!
//! Megatron-DeepSpeed runs the same modules in DeepSpeed's pipeline engine, with messages of its own (`deepspeed`). Where a
//! schedule spreads the vocabulary over pipeline ranks, each runs its part of the embedding and of the head (`vocabulary`).

mod adapter;
mod batch;
mod bf16_optimizer;
mod blocks;
mod buckets;
mod builder;
mod chunk;
mod compute;
mod counts;
mod data;
mod deepspeed;
mod documents;
mod ends;
mod experts;
mod fsdp;
mod graphs;
mod groups;
mod latent;
mod layers;
mod mamba;
mod messages;
mod modules;
mod mtp;
mod optimizer;
mod p2p;
mod python;
mod rank;
mod refused;
mod replicas;
mod sequential;
mod stamped;
mod state;
mod step;
mod together;
mod vocabulary;

pub use crate::plan::megatron::{
    Block, Core, CpCommType, CrossEntropy, CudaGraphs, Engine, ExpertCapacity, Fp8Recipe, Fsdp, Gradients,
    Implementation, Loader, Matmuls, MegatronPlan, Mesh, Mixture, Optimizer, Overlap, Parts, Pipeline, Recompute,
    RecomputeModules, Release, Scatter, Scope, Sharing, Split, Strategy, TokenDispatcher,
};
pub use chunk::{Around, Chunk, ChunkFrame, ChunkParam, LossReport};
pub use ends::Ends;
pub use fsdp::{has_no_use_for_buckets, unfit, unit_size};
pub use modules::Modules;
pub use refused::FP8;

use rayon::prelude::*;

use super::flight::decided;
use super::{Flight, Framework};
use crate::program::Budget;
use crate::runtime::{self, Refusal};
use crate::schedule::{self, Lowering, Schedule, ScheduleError, order};

/// The job's schedule; an error if it cannot have this shape.
pub fn schedule(job: &MegatronPlan) -> Result<Schedule, ScheduleError> {
    job.split.pipeline.schedule.build(job.split.shape())
}

/// What of a job has no rules here, if anything.
pub fn refuses(job: &MegatronPlan) -> Option<Refusal> {
    let together = || -> Option<Refusal> {
        let whole = matches!(job.split.block.recompute, Recompute::Uniform { .. } | Recompute::Block { .. });
        let sends = job.split.mixture.is_some_and(|run| run.dispatcher.row().combines) && job.split.mesh.ep > 1;
        let cases = [
            (
                !sends,
                Refusal::new("combined-exchanges-of-one-rank", "exchanges of experts overlapped with another micro-batch, other than all-to-alls or DeepEP's over several ranks").on("megatron.overlap_moe_expert_parallel_comm"),
            ),
            (whole, Refusal::new("combined-exchanges-recomputed", "exchanges of experts overlapped with another micro-batch around recomputed layers").on("megatron.recompute")),
            (
                !job.gradients.fused_accumulation && job.split.mixture.is_some_and(|run| run.delay_wgrad),
                Refusal::new("delayed-weight-gradients-unfused", "weight gradients made later without gradient_accumulation_fusion").on("megatron.gradient_accumulation_fusion"),
            ),
        ];
        Refusal::first(cases).filter(|_| job.split.combines())
    };
    adapter::refuses(job)
        .or_else(|| mamba::refuses(job))
        .or_else(|| fsdp::refuses(job))
        .or_else(|| Chunk::refuses(&job.split))
        .or_else(|| documents::refuses(&job.split))
        .or_else(together)
        .or_else(|| refuses_schedule(job))
}

/// What a schedule that Megatron-Core itself does not have cannot have beside it, and what to write.
pub fn refuses_schedule(job: &MegatronPlan) -> Option<Refusal> {
    if !job.split.pipeline.schedule.is_of(&order::MEGATRON_HALVES) {
        return vocabulary::refuses(job);
    }
    // `WeightGradStore.is_supported` of sail-sg/zero-bubble-pipeline-parallelism.
    let engine = job.split.block.implementation == Implementation::TransformerEngine;
    let cases = [
        (
            engine,
            Refusal::new("zero-bubble-transformer-engine", "a zero-bubble schedule of Transformer Engine's modules")
                .on("megatron.implementation")
                .instead("write megatron.implementation = \"local\""),
        ),
        (
            !job.gradients.fused_accumulation,
            Refusal::new(
                "zero-bubble-unfused-gradients",
                "a zero-bubble schedule without gradient_accumulation_fusion",
            )
            .on("megatron.gradient_accumulation_fusion")
            .instead("write megatron.gradient_accumulation_fusion = true"),
        ),
        (
            job.gradients.overlap_reduce,
            Refusal::new("zero-bubble-overlapped-reduction", "a zero-bubble schedule with overlap_grad_reduce")
                .on("megatron.overlap_grad_reduce")
                .instead("write megatron.overlap_grad_reduce = false"),
        ),
        (
            job.split.model.mtp_layers > 0,
            Refusal::new("zero-bubble-multi-token", "multi-token prediction under a zero-bubble schedule")
                .on("megatron.mtp_num_layers")
                .instead("write megatron.mtp_num_layers = 0"),
        ),
        (
            job.split.block.recompute_modules != RecomputeModules::default(),
            Refusal::new("zero-bubble-recompute-modules", "a zero-bubble schedule with recompute_modules")
                .on("megatron.recompute_modules")
                .instead("remove megatron.recompute_modules"),
        ),
    ];
    Refusal::first(cases)
}

/// The programs of all pipeline ranks.
///
/// # Panics
///
/// If the job's schedule cannot have its shape: [`schedule()`] says so before.
pub fn compile(job: &MegatronPlan) -> Flight {
    written(job, &Budget::unlimited(), true)
}

/// Does the same, running every micro-batch's operators: what [`compile`] is held to.
pub fn compile_one_by_one(job: &MegatronPlan) -> Flight {
    written(job, &Budget::unlimited(), false)
}

fn written(job: &MegatronPlan, budget: &Budget, stamped: bool) -> Flight {
    let schedule = decided(schedule(job), budget);
    let lowering = Lowering { overlap_p2p_comm: job.split.pipeline.overlap_p2p, ..Lowering::default() };
    let lists = schedule::lower(&schedule, &lowering).expect("a schedule that was built can be lowered");
    let program = |rank| {
        let mut program = step::program((job, budget), (&schedule, &lists), rank, stamped);
        python::launched_by_modules(&mut program);
        program
    };
    // Each rank is a task of its own: they differ, and none shall be left over for one thread.
    Flight::in_turn((0..job.split.mesh.pp).into_par_iter().with_max_len(1).map(program).collect())
}

impl Framework for MegatronPlan {
    fn refuses(&self) -> Option<Refusal> {
        refuses(self)
    }

    /// `megatron/training/arguments.py`: where tensor-parallel ranks, or those that share a sequence, are several. Exchanges of
    /// experts beside another micro-batch want more than one (`core/transformer/moe/README.md`), and so does Megatron-FSDP.
    fn asks_for_one_queue(&self) -> bool {
        let several = self.split.mesh.tp > 1 || self.split.mesh.cp > 1;
        self.engine == Engine::Core && several && !self.split.combines() && self.fsdp.is_none()
    }

    fn modules(&self) -> runtime::Modules {
        let blocks = match self.split.block.implementation {
            Implementation::Local => "Megatron's own",
            Implementation::TransformerEngine => "Transformer Engine's",
        };
        let attention = match self.split.block.core {
            Core::Flash => None,
            Core::Unfused { fused_softmax: true } => Some("attention in matmuls around a fused softmax"),
            Core::Unfused { fused_softmax: false } => Some("attention in matmuls around a softmax in parts"),
        };
        runtime::Modules { attention, ..runtime::Modules::of(blocks) }
    }

    fn compile(&self, budget: &Budget) -> Flight {
        written(self, budget, true)
    }
}
