//! Pipelines of `torch.distributed.pipelining` (PyTorch 2.15) whose stages are roots of `fully_shard`, as torchtitan makes
//! them: `distributed/pipeline_parallel.py`, `trainer.py` at b5bcd76c.
//!
//! A stage's parameters are gathered before its first forward and stay so until its last backward; its gradients are added up
//! whole and reduced after that, all at once (`PipelineStage.backward_maybe_with_nosync`, `perform_reduce_grad`). GPipe and
//! 1F1B are loops of their own (`PipelineScheduleSingle`); the others, and what is read from a file, walk lists of actions, in
//! which gathers and reductions stand too (`_PipelineScheduleRuntime`).
//!
//! [`rank`] walks a rank through its list, [`messages`] says what is sent, received and waited for, and which of it Python's
//! variables still name. Order and memory are held against PyTorch's in `tests/oracles/fsdp2-pipeline.json`.
//!
//! Backwards in halves are cut as autograd cuts them ([`super::halves`]). A forward and a backward that a schedule runs side by
//! side run one after the other, as `_PipelineScheduleRuntime` does it.
//!
//! Left out: what a first step does to learn shapes, and what Python takes to find out where to cut.

mod messages;
mod rank;

use std::sync::Arc;

use rayon::prelude::*;

use super::plan::Part;
use super::{Checkpoint, Job, KeepLogits};
use crate::model::experts::Implementation;
use crate::model::style::{Linears, Modules};
use crate::program::{Budget, StreamId};
use crate::runtime::flight::decided;
use crate::runtime::fsdp::OF_EACH_ROOT;
use crate::runtime::{Flight, Refusal};
use crate::schedule::order;
use crate::schedule::{self, Entry, Kind, Lowering, Placement, Schedule, ScheduleError, Shape};

/// Streams of messages: of batches, and of each pair of neighbours that a rank is in.
pub(super) const STREAMS: [&str; 3] = ["pipeline", "pipeline, rank before", "pipeline, rank after"];

/// Schedules of `torch.distributed.pipelining` that are simulated; the first is torchtitan's default.
pub const SCHEDULES: [&Entry; 7] = order::TORCH;

/// Who runs what when.
#[derive(Clone, Debug)]
pub enum Order {
    /// One of [`SCHEDULES`].
    Named(&'static Entry),
    /// That of a file, and how its stages lie on ranks (torchtitan's `pipeline_parallel_schedule_csv`). Its lists are walked,
    /// those of one stage a rank too.
    File(Arc<Schedule>, Placement),
}

impl Order {
    /// Its name, or the file's.
    pub fn name(&self) -> &str {
        match self {
            Order::Named(entry) => entry.name,
            Order::File(schedule, _) => &schedule.name,
        }
    }

    /// Which rank runs which stage.
    pub fn placement(&self) -> Placement {
        match self {
            Order::Named(entry) => entry.placement,
            Order::File(_, placement) => *placement,
        }
    }

    /// Whether backwards come in halves.
    fn halves(&self) -> bool {
        match self {
            Order::Named(entry) => entry.is_of(&order::TORCH_HALVES),
            Order::File(schedule, _) => schedule.lists.all().iter().any(|action| action.kind == Kind::Weight),
        }
    }
}

/// How a model is cut into stages, and when their ranks do what.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Who runs what when.
    pub schedule: Order,
    /// Pipeline ranks.
    pub ranks: u32,
    /// Stages on each rank.
    pub virtual_stages: u32,
    /// Blocks of each stage.
    pub layers: Vec<u64>,
}

impl Pipeline {
    /// What its schedule is a function of.
    pub fn shape(&self, microbatches: u32) -> Shape {
        Shape { ranks: self.ranks, virtual_stages: self.virtual_stages, microbatches }
    }

    /// The stages of a rank, in the order in which it holds them.
    pub fn stages(&self, rank: u32) -> Vec<usize> {
        let stage = |chunk| usize::from(self.shape(1).stage(self.schedule.placement(), rank, chunk));
        (0..self.virtual_stages).map(stage).collect()
    }

    /// What a stage has of the model.
    fn part(&self, stage: usize) -> Part {
        let first: u64 = self.layers[..stage].iter().sum();
        let blocks = first as usize..(first + self.layers[stage]) as usize;
        Part { embedding: stage == 0, blocks, head: stage + 1 == self.layers.len() }
    }

    /// The first of the streams of messages, behind FSDP's.
    fn messages(&self) -> StreamId {
        StreamId((1 + OF_EACH_ROOT * self.virtual_stages as usize) as u8)
    }
}

/// Blocks of each stage where the first and the last count as so many blocks more; what does not divide goes to the first
/// stages.
pub fn split(layers: u64, stages: u64, [first, last]: [u64; 2]) -> Result<Vec<u64>, String> {
    let all = layers + first + last;
    let (each, more) = (all / stages, all % stages);
    for (what, weight) in [("first", first), ("last", last)] {
        if weight > each || each == 0 {
            return Err(format!(
                "{layers} blocks do not make {stages} stages of {each} of which the {what} has {weight} less"
            ));
        }
    }
    let of = |stage: u64| {
        let less = if stage == 0 { first } else { 0 } + if stage + 1 == stages { last } else { 0 };
        each + u64::from(stage < more) - less
    };
    Ok((0..stages).map(of).collect())
}

/// The first thing in a pipelined job that has no rules.
pub fn refuses(job: &Job) -> Option<Refusal> {
    job.pipeline.as_ref()?;
    let model = &job.model;
    let titans = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let list = [
        (
            model.experts.is_some() && !titans,
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
pub fn refuses_halves(job: &Job) -> Option<Refusal> {
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
    if job.model.experts.is_some() {
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

/// The job's schedule; an error if it cannot have this shape.
pub fn schedule(pipeline: &Pipeline, microbatches: u32) -> Result<Arc<Schedule>, ScheduleError> {
    match &pipeline.schedule {
        Order::Named(entry) => entry.build(pipeline.shape(microbatches)).map(Arc::new),
        Order::File(schedule, _) => Ok(schedule.clone()),
    }
}

/// The programs of all pipeline ranks.
pub(super) fn compile(job: &Job, pipeline: &Pipeline, budget: &Budget) -> Flight {
    let schedule = decided(schedule(pipeline, job.accumulation), budget);
    let lists = schedule::lower(&schedule, &Lowering::default()).expect("a schedule that was built can be lowered");
    let program = |rank| rank::Rank::program((job, pipeline, budget), &schedule, &lists, rank);
    Flight::in_turn((0..pipeline.ranks).into_par_iter().map(program).collect())
}
