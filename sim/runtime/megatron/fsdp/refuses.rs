//! What of Megatron-FSDP has no rules here.

use crate::model::ModelConfig;
use crate::plan::megatron::{Engine, Matmuls};
use crate::program::DType;
use crate::runtime::Refusal;
use crate::runtime::megatron::MegatronPlan;

/// The first thing that does not go with Megatron-FSDP, if any; `stages` are all of a pipeline's.
pub fn unfit(
    (engine, stages): (Engine, u32),
    model: &ModelConfig,
    (matmuls, dtype): (Matmuls, DType),
) -> Option<Refusal> {
    Refusal::first([
        (
            engine != Engine::Core,
            Refusal::new("megatron-fsdp-deepspeed", "Megatron-FSDP in DeepSpeed's pipeline engine")
                .on("runtime")
                .instead("write runtime = \"megatron\""),
        ),
        (
            stages > 1,
            Refusal::new("megatron-fsdp-pipeline", "Megatron-FSDP in a pipeline")
                .on("mesh.pp")
                .instead("write mesh.pp = 1"),
        ),
        (
            model.experts().is_some(),
            Refusal::new("megatron-fsdp-experts", "Megatron-FSDP of a mixture of experts")
                .instead("take a dense model"),
        ),
        (
            model.mtp_layers > 0,
            Refusal::new("megatron-fsdp-multi-token", "Megatron-FSDP with multi-token prediction")
                .on("megatron.mtp_num_layers")
                .instead("write megatron.mtp_num_layers = 0"),
        ),
        (
            matmuls != Matmuls::Plain,
            Refusal::new("megatron-fsdp-fp8", "Megatron-FSDP with fp8 matmuls")
                .on("megatron.fp8")
                .instead("remove megatron.fp8"),
        ),
        (
            dtype != DType::Bf16,
            Refusal::new("megatron-fsdp-type", "Megatron-FSDP in another type than bf16")
                .on("precision.param")
                .instead("write precision.param = \"bf16\""),
        ),
    ])
}

/// What of a job does not go with it, which need not have been read from a file.
pub fn refuses(job: &MegatronPlan) -> Option<Refusal> {
    job.fsdp?;
    let stages = job.split.mesh.pp * job.split.pipeline.virtual_stages;
    unfit((job.engine, stages), &job.split.model, (job.split.matmuls, job.split.dtype))
}
