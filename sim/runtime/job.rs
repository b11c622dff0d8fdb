//! A job of any runtime: what everything above asks of it, whichever framework it is.

use super::{Flight, internevo, megatron, nanotron, train};
use crate::model::ModelConfig;
use crate::program::DType;
use crate::schedule::Shape;

/// A training job, fully decided. To add a runtime: a module beside this file, a variant here, and an arm in
/// [`Job::parts`] and [`Job::compile`]. A runtime whose ranks split a model as Megatron's do keeps that as a
/// [`megatron::Job`] among its own settings.
#[derive(Clone, Debug)]
pub enum Job {
    /// PyTorch's own: `fully_shard`, its predecessor, or one device.
    Train(Box<train::Job>),
    /// Megatron-Core.
    Megatron(Box<megatron::Job>),
    /// InternEvo.
    InternEvo(Box<internevo::Job>),
    /// nanotron.
    Nanotron(Box<nanotron::Job>),
}

/// What a job is about, whichever framework steps it.
#[derive(Clone, Copy, Debug)]
pub enum Parts<'j> {
    /// Every rank runs the whole model, or its part of every module.
    Whole(&'j train::Job),
    /// Ranks split it on Megatron's axes.
    Split(&'j megatron::Job),
}

impl Job {
    /// What it is about.
    pub fn parts(&self) -> Parts<'_> {
        match self {
            Job::Train(job) => Parts::Whole(job),
            Job::Megatron(job) => Parts::Split(job),
            Job::InternEvo(job) => Parts::Split(&job.split),
            Job::Nanotron(job) => Parts::Split(&job.split),
        }
    }

    /// The same job of the same framework, split otherwise; a job that is not split stays as it is.
    pub fn with_split(&self, split: megatron::Job) -> Job {
        match self {
            Job::Train(_) => self.clone(),
            Job::Megatron(_) => Job::Megatron(Box::new(split)),
            Job::InternEvo(job) => Job::InternEvo(Box::new(internevo::Job { split, ..(**job).clone() })),
            Job::Nanotron(job) => Job::Nanotron(Box::new(nanotron::Job { split, ..(**job).clone() })),
        }
    }

    /// The job of PyTorch's own runtimes, if it is one.
    pub fn train(&self) -> Option<&train::Job> {
        match self.parts() {
            Parts::Whole(job) => Some(job),
            Parts::Split(_) => None,
        }
    }

    /// How ranks split the model, if they do so on Megatron's axes.
    pub fn split(&self) -> Option<&megatron::Job> {
        match self.parts() {
            Parts::Whole(_) => None,
            Parts::Split(job) => Some(job),
        }
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        match self.parts() {
            Parts::Whole(job) => &job.model,
            Parts::Split(job) => &job.model,
        }
    }

    /// Sequences in a micro-batch.
    pub fn batch(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.batch,
            Parts::Split(job) => job.batch,
        }
    }

    /// Tokens of a sequence.
    pub fn seq(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.seq,
            Parts::Split(job) => job.seq,
        }
    }

    /// Micro-batches of a step, on each replica of the model.
    pub fn micro_batches(&self) -> u32 {
        match self.parts() {
            Parts::Whole(job) => job.accumulation,
            Parts::Split(job) => job.micro_batches,
        }
    }

    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => job.tokens(),
            Parts::Split(job) => job.tokens(),
        }
    }

    /// Ranks.
    pub fn ranks(&self) -> u64 {
        match self.parts() {
            Parts::Whole(job) => u64::from(job.data_ranks()) * job.tensor.ranks,
            Parts::Split(job) => u64::from(job.mesh.ranks()),
        }
    }

    /// The type that matmuls multiply in.
    pub fn dtype(&self) -> DType {
        match self.parts() {
            Parts::Whole(job) => job.fsdp.mixed_precision.compute(),
            Parts::Split(job) => match job.matmuls {
                megatron::Matmuls::Plain => job.dtype,
                megatron::Matmuls::Fp8 { .. } => DType::Fp8,
            },
        }
    }

    /// Blocks that the ranks of a class run, stage by stage in the order of the model; all of them where every rank runs
    /// the whole model.
    pub fn layers_of(&self, class: u32) -> Vec<u64> {
        match self.parts() {
            Parts::Whole(job) => vec![job.model.layers],
            Parts::Split(job) => {
                let (ranks, virtual_stages) = (job.mesh.pp, job.pipeline.virtual_stages);
                let shape = Shape { ranks, virtual_stages, microbatches: job.micro_batches };
                let stage = |chunk| usize::from(shape.stage(job.pipeline.schedule.placement, class, chunk));
                (0..virtual_stages).map(|chunk| job.pipeline.layers[stage(chunk)]).collect()
            }
        }
    }

    /// What its ranks run.
    pub fn compile(&self) -> Flight {
        match self {
            Job::Train(job) => Flight::alike(train::compile(job)),
            Job::Megatron(job) => megatron::compile(job),
            Job::InternEvo(job) => internevo::compile(job),
            Job::Nanotron(job) => nanotron::compile(job),
        }
    }
}
