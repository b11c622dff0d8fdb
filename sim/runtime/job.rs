//! A job of any runtime: what everything above asks of it, whichever framework it is.

use std::fmt;
use std::sync::Arc;

use super::{Flight, Refusal, megatron, spmd, train};
use crate::model::ModelConfig;
use crate::program::{Budget, DType, TooLong};
use crate::schedule::Shape;

/// What a framework makes of a training job, fully decided: all that a runtime has to say here.
pub trait Framework: fmt::Debug + Send + Sync {
    /// What it is about.
    fn parts(&self) -> Parts<'_>;
    /// The same job with another number of micro-batches in a step; none if its schedule is made for this number alone.
    fn with_micro_batches(&self, _count: u32) -> Option<Job> {
        None
    }
    /// What of the job has no rules here, if anything.
    fn refuses(&self) -> Option<Refusal>;
    /// Whose modules run.
    fn modules(&self) -> Modules;
    /// Which part of each of the model's states a rank holds, where no parameter groups say so.
    fn spread(&self) -> Vec<(&'static str, String)> {
        vec![]
    }
    /// Whether it is run with one queue to the device (`CUDA_DEVICE_MAX_CONNECTIONS=1`) unless somebody says otherwise, on
    /// chips before Blackwell.
    fn asks_for_one_queue(&self) -> bool {
        false
    }
    /// The framework's own key that lets blocks run again in backward, where it is a flag.
    fn recompute_flag(&self) -> Option<&'static str> {
        None
    }
    /// What its ranks run, written with instructions of a budget.
    fn compile(&self, budget: &Budget) -> Flight;
}

/// Whose modules a job runs, in words for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modules {
    /// Whose blocks.
    pub blocks: &'static str,
    /// How attention is computed, where it is not by fused kernels.
    pub attention: Option<&'static str>,
    /// The linears' type, where it is not the head's.
    pub linears: Option<&'static str>,
    /// What may part the run from what is simulated.
    pub doubts: Vec<&'static str>,
}

impl Modules {
    /// Blocks with fused attention, and nothing to add.
    pub fn of(blocks: &'static str) -> Modules {
        Modules { blocks, attention: None, linears: None, doubts: vec![] }
    }
}

/// A training job of any framework.
#[derive(Clone, Debug)]
pub struct Job(Arc<dyn Framework>);

/// What a job is about, whichever framework steps it.
#[derive(Clone, Copy, Debug)]
pub enum Parts<'j> {
    /// Every rank runs the whole model, or its part of every module.
    Whole(&'j train::Job),
    /// Ranks split it on Megatron's axes.
    Split(&'j megatron::Job),
    /// A compiler shards it over named axes.
    Compiled(&'j spmd::Job),
}

impl Job {
    /// A job of a framework.
    pub fn of(job: impl Framework + 'static) -> Job {
        Job(Arc::new(job))
    }

    /// What it is about.
    pub fn parts(&self) -> Parts<'_> {
        self.0.parts()
    }

    /// The same job with another number of micro-batches in a step; none if its schedule is made for this number alone.
    pub fn with_micro_batches(&self, count: u32) -> Option<Job> {
        self.0.with_micro_batches(count)
    }

    /// What of it has no rules here, if anything.
    pub fn refuses(&self) -> Option<Refusal> {
        self.0.refuses()
    }

    /// Whether it is run with one queue to the device unless somebody says otherwise, on chips before Blackwell.
    pub fn asks_for_one_queue(&self) -> bool {
        self.0.asks_for_one_queue()
    }

    /// Whose modules run.
    pub fn modules(&self) -> Modules {
        self.0.modules()
    }

    /// Which part of each of the model's states a rank holds, where no parameter groups say so.
    pub fn spread(&self) -> Vec<(&'static str, String)> {
        self.0.spread()
    }

    /// The framework's own key that lets blocks run again in backward, where it is a flag.
    pub fn recompute_flag(&self) -> Option<&'static str> {
        self.0.recompute_flag()
    }

    /// The job of PyTorch's own runtimes, if it is one.
    pub fn train(&self) -> Option<&train::Job> {
        match self.parts() {
            Parts::Whole(job) => Some(job),
            Parts::Split(_) | Parts::Compiled(_) => None,
        }
    }

    /// How ranks split the model, if they do so on Megatron's axes.
    pub fn split(&self) -> Option<&megatron::Job> {
        match self.parts() {
            Parts::Whole(_) | Parts::Compiled(_) => None,
            Parts::Split(job) => Some(job),
        }
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        match self.parts() {
            Parts::Whole(job) => &job.model,
            Parts::Split(job) => &job.model,
            Parts::Compiled(job) => &job.model,
        }
    }

    /// Sequences in a micro-batch.
    pub fn batch(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.batch,
            Parts::Split(job) => job.batch,
            Parts::Compiled(job) => job.batch,
        }
    }

    /// Tokens of a sequence.
    pub fn seq(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.seq,
            Parts::Split(job) => job.seq,
            Parts::Compiled(job) => job.seq,
        }
    }

    /// Micro-batches of a step, on each replica of the model.
    pub fn micro_batches(&self) -> u32 {
        match self.parts() {
            Parts::Whole(job) => job.accumulation,
            Parts::Split(job) => job.micro_batches,
            Parts::Compiled(_) => 1,
        }
    }

    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.tokens(),
            Parts::Split(job) => job.tokens(),
            Parts::Compiled(job) => job.tokens(),
        }
    }

    /// Ranks.
    pub fn ranks(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => u64::from(job.ranks()),
            Parts::Split(job) => u64::from(job.mesh.ranks()),
            Parts::Compiled(job) => u64::from(job.mesh.ranks()),
        }
    }

    /// The type that matmuls multiply in.
    pub fn dtype(&self) -> DType {
        match self.parts() {
            Parts::Whole(job) => job.multiplies_in(),
            Parts::Split(job) => match job.matmuls {
                megatron::Matmuls::Plain => job.dtype,
                megatron::Matmuls::Fp8 { .. } => DType::Fp8,
            },
            Parts::Compiled(_) => DType::Bf16,
        }
    }

    /// Blocks that the ranks of a class run, stage by stage in the order of the model; all of them where every rank runs
    /// the whole model.
    pub fn layers_of(&self, class: u32) -> Vec<u64> {
        match self.parts() {
            Parts::Whole(job) => match &job.pipeline {
                Some(pipeline) => pipeline.stages(class).into_iter().map(|stage| pipeline.layers[stage]).collect(),
                None => vec![job.model.layers.count()],
            },
            Parts::Compiled(job) => vec![job.model.layers.count()],
            Parts::Split(job) => {
                let (ranks, virtual_stages) = (job.mesh.pp, job.pipeline.virtual_stages);
                let shape = Shape { ranks, virtual_stages, microbatches: job.micro_batches };
                let stage = |chunk| usize::from(shape.stage(job.pipeline.schedule.placement, class, chunk));
                (0..virtual_stages).map(|chunk| job.pipeline.layers[stage(chunk)]).collect()
            }
        }
    }

    /// What its ranks run, however long that is.
    pub fn compile(&self) -> Flight {
        self.0.compile(&Budget::unlimited())
    }

    /// What its ranks run, if their programs have no more than `most` instructions together.
    pub fn compile_within(&self, most: u64) -> Result<Flight, TooLong> {
        Budget::write(most, |budget| self.0.compile(budget))
    }
}
