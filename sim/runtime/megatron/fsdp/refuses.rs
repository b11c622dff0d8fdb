//! What of Megatron-FSDP has no rules here.

use crate::model::ModelConfig;
use crate::program::DType;
use crate::runtime::megatron::Job;
use crate::runtime::megatron::job::{Engine, Matmuls};

/// Something that does not go with Megatron-FSDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// DeepSpeed's pipeline engine, which has none.
    Engine,
    /// A pipeline.
    Pipeline,
    /// A mixture of experts.
    Experts,
    /// Multi-token prediction.
    Ahead,
    /// Matmuls in fp8.
    Fp8,
    /// Another type than bf16.
    Type,
}

impl Unfit {
    /// The first, if any; `stages` are all of a pipeline's.
    pub fn first(
        (engine, stages): (Engine, u32),
        model: &ModelConfig,
        (matmuls, dtype): (Matmuls, DType),
    ) -> Option<Unfit> {
        let cases = [
            (engine != Engine::Core, Unfit::Engine),
            (stages > 1, Unfit::Pipeline),
            (model.experts.is_some(), Unfit::Experts),
            (model.predicts_ahead > 0, Unfit::Ahead),
            (matmuls != Matmuls::Plain, Unfit::Fp8),
            (dtype != DType::Bf16, Unfit::Type),
        ];
        cases.into_iter().find(|(applies, _)| *applies).map(|(_, what)| what)
    }

    /// Megatron-FSDP with it.
    pub fn named(self) -> &'static str {
        match self {
            Unfit::Engine => "Megatron-FSDP in DeepSpeed's pipeline engine",
            Unfit::Pipeline => "Megatron-FSDP in a pipeline",
            Unfit::Experts => "Megatron-FSDP of a mixture of experts",
            Unfit::Ahead => "Megatron-FSDP with multi-token prediction",
            Unfit::Fp8 => "Megatron-FSDP with fp8 matmuls",
            Unfit::Type => "Megatron-FSDP in another type than bf16",
        }
    }
}

/// What of a job does not go with it, which need not have been read from a file.
pub fn refuses(job: &Job) -> Option<&'static str> {
    job.fsdp?;
    let stages = job.mesh.pp * job.pipeline.virtual_stages;
    Unfit::first((job.engine, stages), &job.model, (job.matmuls, job.dtype)).map(Unfit::named)
}
