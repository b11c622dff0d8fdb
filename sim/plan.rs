//! The plan of a training job: everything that is decided about it, as plain data, whichever framework runs it.
//!
//! A scenario decides a plan, and a runtime writes the programs of its ranks, which are a function of the plan alone. Plans are
//! compared, hashed and serialised; a what-if is a struct update. What a number of a plan means is the framework's, and the names
//! are those of its settings.
//!
//! To add a framework: a file here with its plan, a variant of [`Plan`], and a module in `runtime` that answers for it.

pub mod eager;
pub mod internevo;
mod kept;
pub mod megatron;
pub mod nanotron;
pub mod optimizer;
pub mod torch;
pub mod xla;
pub mod zero;

pub use internevo::InternEvoPlan;
pub use kept::Kept;
pub use megatron::MegatronPlan;
pub use nanotron::NanotronPlan;
pub use torch::TorchPlan;
pub use xla::XlaPlan;
pub use zero::ZeroPlan;

use crate::model::ModelConfig;
use crate::model::documents::Documents;
use crate::program::DType;
use crate::schedule::Shape;

/// The plan of a training job: everything that is decided about it, whichever framework runs it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Plan {
    /// PyTorch's own runtimes.
    Torch(TorchPlan),
    /// DeepSpeed's ZeRO.
    Zero(ZeroPlan),
    /// Megatron-Core, by itself or in DeepSpeed's pipeline engine.
    Megatron(MegatronPlan),
    /// InternEvo.
    InternEvo(InternEvoPlan),
    /// nanotron.
    Nanotron(NanotronPlan),
    /// XLA on TPU.
    Xla(XlaPlan),
}

/// What a job is about, whichever framework steps it.
#[derive(Clone, Copy, Debug)]
pub enum Parts<'j> {
    /// Every rank runs the whole model, or its part of every module.
    Whole(&'j TorchPlan),
    /// Ranks split it on Megatron's axes.
    Split(&'j megatron::Split),
    /// A compiler shards it over named axes.
    Compiled(&'j XlaPlan),
}

impl Plan {
    /// What it is about.
    pub fn parts(&self) -> Parts<'_> {
        match self {
            Plan::Torch(plan) => Parts::Whole(plan),
            Plan::Zero(plan) => Parts::Whole(&plan.whole),
            Plan::Megatron(plan) => Parts::Split(&plan.split),
            Plan::InternEvo(plan) => Parts::Split(&plan.split),
            Plan::Nanotron(plan) => Parts::Split(&plan.split),
            Plan::Xla(plan) => Parts::Compiled(plan),
        }
    }

    /// The same plan with another number of micro-batches in a step; none if its schedule is made for this number alone, or
    /// if a step is one batch.
    pub fn with_micro_batches(&self, count: u32) -> Option<Plan> {
        let mut plan = self.clone();
        match &mut plan {
            Plan::Torch(plan) if plan.pipeline.as_ref().is_some_and(torch::Pipeline::is_from_file) => return None,
            Plan::Torch(plan) => plan.accumulation = count,
            Plan::Zero(plan) => plan.whole.accumulation = count,
            Plan::Megatron(plan) => plan.split.micro_batches = count,
            Plan::InternEvo(plan) => plan.split.micro_batches = count,
            Plan::Nanotron(plan) => plan.split.micro_batches = count,
            Plan::Xla(plan) => plan.accumulation = count,
        }
        Some(plan)
    }

    /// The job of PyTorch's own runtimes, if it is one.
    pub fn train(&self) -> Option<&TorchPlan> {
        match self.parts() {
            Parts::Whole(job) => Some(job),
            Parts::Split(_) | Parts::Compiled(_) => None,
        }
    }

    /// The plan of Megatron-Core, if it is one.
    pub fn megatron(&self) -> Option<&MegatronPlan> {
        match self {
            Plan::Megatron(plan) => Some(plan),
            Plan::Torch(_) | Plan::Zero(_) | Plan::InternEvo(_) | Plan::Nanotron(_) | Plan::Xla(_) => None,
        }
    }

    /// How ranks split the model, if they do so on Megatron's axes.
    pub fn split(&self) -> Option<&megatron::Split> {
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

    /// Sequences of a sample: two of a pair, else one.
    pub fn sequences_of_a_sample(&self) -> u64 {
        if let Plan::Torch(plan) = self { plan.sequences_of_a_sample() } else { 1 }
    }

    /// Samples in a micro-batch, as `batch.micro` counts them.
    pub fn samples(&self) -> u64 {
        self.batch() / self.sequences_of_a_sample()
    }

    /// Tokens of a sequence.
    pub fn seq(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.seq,
            Parts::Split(job) => job.seq,
            Parts::Compiled(job) => job.seq,
        }
    }

    /// Documents of a sequence, where attention stays inside each.
    pub fn documents(&self) -> Option<Documents> {
        match self.parts() {
            Parts::Whole(job) => job.documents,
            Parts::Split(job) => job.documents,
            Parts::Compiled(_) => None,
        }
    }

    /// Micro-batches of a step, on each replica of the model.
    pub fn micro_batches(&self) -> u32 {
        match self.parts() {
            Parts::Whole(job) => job.accumulation,
            Parts::Split(job) => job.micro_batches,
            Parts::Compiled(job) => job.accumulation,
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
}
