//! A job of any runtime: what everything above asks of it, whichever framework it is.

use super::{Flight, megatron, train};
use crate::model::ModelConfig;
use crate::program::DType;
use crate::schedule::Shape;

/// A training job, fully decided. To add a runtime: a module beside this file, and a variant here.
#[derive(Clone, Debug)]
pub enum Job {
    /// PyTorch's own: `fully_shard`, its predecessor, or one device.
    Train(Box<train::Job>),
    /// Megatron-Core.
    Megatron(Box<megatron::Job>),
}

impl Job {
    /// The job of PyTorch's own runtimes, if it is one.
    pub fn train(&self) -> Option<&train::Job> {
        match self {
            Job::Train(job) => Some(job),
            Job::Megatron(_) => None,
        }
    }

    /// Megatron's job, if it is one.
    pub fn megatron(&self) -> Option<&megatron::Job> {
        match self {
            Job::Train(_) => None,
            Job::Megatron(job) => Some(job),
        }
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        match self {
            Job::Train(job) => &job.model,
            Job::Megatron(job) => &job.model,
        }
    }

    /// Sequences in a micro-batch.
    pub fn batch(&self) -> u64 {
        match self {
            Job::Train(job) => job.batch,
            Job::Megatron(job) => job.batch,
        }
    }

    /// Tokens of a sequence.
    pub fn seq(&self) -> u64 {
        match self {
            Job::Train(job) => job.seq,
            Job::Megatron(job) => job.seq,
        }
    }

    /// Micro-batches of a step, on each replica of the model.
    pub fn micro_batches(&self) -> u32 {
        match self {
            Job::Train(job) => job.accumulation,
            Job::Megatron(job) => job.micro_batches,
        }
    }

    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        match self {
            Job::Train(job) => job.tokens(),
            Job::Megatron(job) => job.tokens(),
        }
    }

    /// Ranks.
    pub fn ranks(&self) -> u64 {
        match self {
            Job::Train(job) => u64::from(job.data_ranks()) * job.tensor.ranks,
            Job::Megatron(job) => u64::from(job.mesh.ranks()),
        }
    }

    /// The type that matmuls multiply in.
    pub fn dtype(&self) -> DType {
        match self {
            Job::Train(job) => job.fsdp.mixed_precision.compute(),
            Job::Megatron(job) => match job.matmuls {
                megatron::Matmuls::Plain => job.dtype,
                megatron::Matmuls::Fp8 { .. } => DType::Fp8,
            },
        }
    }

    /// Blocks that the ranks of a class run, stage by stage in the order of the model; all of them where every rank runs
    /// the whole model.
    pub fn layers_of(&self, class: u32) -> Vec<u64> {
        match self {
            Job::Train(job) => vec![job.model.layers],
            Job::Megatron(job) => {
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
        }
    }
}
