//! What of Megatron-FSDP has no rules here: a job that was not read from a file, which says more, is held against it.

use crate::program::DType;
use crate::runtime::megatron::Job;
use crate::runtime::megatron::job::{Engine, Matmuls};

/// The first thing that does not go with Megatron-FSDP, if anything.
pub fn refuses(job: &Job) -> Option<&'static str> {
    job.fsdp?;
    let cases = [
        (job.engine != Engine::Core, "Megatron-FSDP in DeepSpeed's pipeline engine"),
        (job.mesh.pp > 1 || job.pipeline.virtual_stages > 1, "Megatron-FSDP in a pipeline"),
        (job.mixture.is_some(), "Megatron-FSDP of a mixture of experts"),
        (job.matmuls != Matmuls::Plain, "Megatron-FSDP with fp8 matmuls"),
        (job.model.predicts_ahead > 0, "Megatron-FSDP with multi-token prediction"),
        (job.dtype != DType::Bf16, "Megatron-FSDP in another type than bf16"),
    ];
    cases.into_iter().find(|(applies, _)| *applies).map(|(_, what)| what)
}
