//! Pipelines of `torch.distributed.pipelining` (PyTorch 2.15) whose stages are roots of `fully_shard`, as torchtitan makes
//! them: `distributed/pipeline_parallel.py`, `trainer.py` at b5bcd76c.
//!
//! A stage's parameters are gathered before its first forward and stay so until its last backward; its gradients are added up
//! whole and reduced after that, all at once (`PipelineStage.backward_maybe_with_nosync`, `perform_reduce_grad`). GPipe and
//! 1F1B are loops of their own (`PipelineScheduleSingle`); the others, and what is read from a file, walk lists of actions, in
//! which gathers and reductions stand too (`_PipelineScheduleRuntime`).
//!
//! [`walk`] takes a rank through its list, [`exchange`] says what is sent, received and waited for, and which of it Python's
//! variables still name. Order and memory are held against PyTorch's in `tests/oracles/fsdp2-pipeline.json`.
//!
//! Backwards in halves are cut as autograd cuts them ([`super::halves`]). A forward and a backward that a schedule runs side by
//! side run one after the other, as `_PipelineScheduleRuntime` does it.
//!
//! Left out: what a first step does to learn shapes, and what Python takes to find out where to cut.

mod exchange;
mod messages;
mod rank;
pub(super) mod stages;
mod walk;

pub use crate::plan::torch::{Order, Pipeline};
pub use stages::{SCHEDULES, schedule, split};

use rayon::prelude::*;

use crate::model::experts::Implementation;
use crate::model::style::{Linears, Modules};
use crate::plan::torch::Checkpoint;
use crate::plan::torch::KeepLogits;
use crate::plan::torch::TorchPlan;
use crate::program::Budget;
use crate::runtime::flight::decided;
use crate::runtime::{Flight, Refusal};
use crate::schedule::{self, Lowering};

/// The first thing in a pipelined job that has no rules.
pub fn refuses(job: &TorchPlan) -> Option<Refusal> {
    job.pipeline.as_ref()?;
    let model = &job.model;
    let titans = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let list = [
        (
            model.experts().is_some() && !titans,
            Refusal::new("pipeline-experts", "experts that are not run as torchtitan runs them")
                .on("framework.experts"),
        ),
        (
            model.tied_head,
            Refusal::new(
                "pipeline-tied-head",
                "a model whose head is the embedding's table (torchtitan refuses it, too)",
            )
            .on("model.tied_head"),
        ),
        (
            !job.loss.sees_whole_logits(),
            Refusal::new("pipeline-loss-by-parts", "a model whose loss runs the head itself").on("loss.kind"),
        ),
        (
            job.output.is_some(),
            Refusal::new("pipeline-cast-logits", "logits that the root casts").on("precision.output"),
        ),
        (
            job.keep_logits != KeepLogits::No || job.training_loop.train_metrics > 0,
            Refusal::new("pipeline-kept-logits", "logits that the loop keeps or measures").on("loss.keep_logits"),
        ),
        (
            job.step_in_backward,
            Refusal::new("pipeline-step-in-backward", "optimizers that step in backward").on("optimizer.in_backward"),
        ),
        (
            job.eager.offload.is_some(),
            Refusal::new("pipeline-offloaded-activations", "activations in the host's memory")
                .on("activation_checkpointing.offload"),
        ),
        (
            job.fsdp.cpu_offload,
            Refusal::new("pipeline-offloaded-parameters", "parameters on the host").on("fsdp.cpu_offload"),
        ),
        (job.unpad, Refusal::new("pipeline-packed-tokens", "packed tokens").on("attention.unpad")),
        (
            job.style.modules == Modules::Transformers,
            Refusal::new("pipeline-transformers-classes", "transformers' classes (framework.modules)")
                .on("framework.modules"),
        ),
        (
            job.loss_inside,
            Refusal::new("pipeline-loss-inside-model", "a loss that the model computes itself (loss.inside_model)")
                .on("loss.inside_model"),
        ),
        (
            job.eager.persistent_workspace,
            Refusal::new("pipeline-persistent-workspaces", "workspaces that stay taken")
                .on("framework.persistent_cublas_workspace"),
        ),
    ];
    Refusal::first(list)
}

/// Why a schedule whose backwards come in halves cannot run this job, and what to write.
pub fn refuses_halves(job: &TorchPlan) -> Option<Refusal> {
    let pipeline = job.pipeline.as_ref()?;
    let name = pipeline.schedule.name();
    if !pipeline.schedule.halves() {
        return None;
    }
    let or = |key: &str| format!("write {key}, or pipeline.schedule = \"LoopedBFS\"");
    if job.compile {
        let problem = match pipeline.schedule {
            Order::Named(_) => format!("PyTorch does not run {name} on stage modules that have used torch.compile"),
            Order::File(..) => {
                format!("{name} has backwards in halves, and those of compiled blocks are not simulated")
            }
        };
        let refusal = Refusal::new("halves-compiled", problem).on("compile.blocks");
        return Some(refusal.instead(or("compile.blocks = false")));
    }
    if job.checkpoint != Checkpoint::None {
        let problem = format!(
            "under {name} a checkpointed block is computed again for its input's gradient and for each of its parameters, and \
             all of that is kept, which is not simulated"
        );
        let refusal = Refusal::new("halves-checkpointed", problem).on("activation_checkpointing.policy");
        return Some(refusal.instead(or("activation_checkpointing.policy = \"none\"")));
    }
    if job.model.experts().is_some() {
        let problem = format!("{name} has backwards in halves, and those of a mixture of experts are not simulated");
        let refusal = Refusal::new("halves-experts", problem).on("pipeline.schedule");
        return Some(refusal.instead("write pipeline.schedule = \"LoopedBFS\", or take a dense model"));
    }
    if !(job.eager.fused_rms_norm && job.style.linears == Linears::Torch) {
        let problem = format!(
            "{name} is simulated for linears and norms of one kernel each way, and {} has others",
            job.model.name
        );
        let refusal = Refusal::new("halves-several-kernels", problem).on("pipeline.schedule");
        return Some(refusal.instead("write pipeline.schedule = \"LoopedBFS\""));
    }
    None
}

/// The programs of all pipeline ranks.
pub(super) fn compile(job: &TorchPlan, pipeline: &Pipeline, budget: &Budget) -> Flight {
    let schedule = decided(stages::schedule(pipeline, job.accumulation), budget);
    let lists = schedule::lower(&schedule, &Lowering::default()).expect("a schedule that was built can be lowered");
    let program = |rank| walk::program((job, pipeline, budget), &schedule, &lists, rank);
    Flight::in_turn((0..pipeline.ranks).into_par_iter().map(program).collect())
}
