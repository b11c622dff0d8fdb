//! What is not simulated of a step for GPUs.

use crate::plan::xla::{GpuFlags, XlaPlan};
use crate::runtime::Refusal;

/// What of a plan has no rules on GPUs.
pub(super) fn refuses(job: &XlaPlan) -> Option<Refusal> {
    job.gpu()?;
    let offloads = job.remat.offloads();
    let cases = [
        (job.model.experts().is_some(), Refusal::new("xla-gpu-experts", "a mixture of experts, on XLA for GPUs")),
        (
            job.model.latent().is_some(),
            Refusal::new("xla-gpu-latent-attention", "latent attention (MLA), on XLA for GPUs"),
        ),
        (
            job.pipeline.is_some(),
            Refusal::new("xla-gpu-pipeline", "a pipeline, on XLA for GPUs")
                .on("mesh.pipeline")
                .instead("write mesh.pipeline = 1"),
        ),
        (
            job.mesh.context > 1,
            Refusal::new("xla-gpu-context", "shared sequences, on XLA for GPUs")
                .on("mesh.context")
                .instead("write mesh.context = 1"),
        ),
        (
            job.vocab_tiling > 1,
            Refusal::new("xla-gpu-vocab-tiling", "a loss in parts, on XLA for GPUs")
                .on("xla.num_vocab_tiling")
                .instead("write xla.num_vocab_tiling = 1"),
        ),
        (
            job.quantization.is_some(),
            Refusal::new("xla-gpu-quantised", "linears in eight bits, on XLA for GPUs")
                .on("xla.quantization")
                .instead("remove xla.quantization"),
        ),
        (
            offloads,
            Refusal::new("xla-gpu-offload", "activations in the host's memory, on XLA for GPUs")
                .on("xla.remat_policy")
                .instead("write another xla.remat_policy"),
        ),
    ];
    Refusal::first(cases)
}

/// What a reader of the plan should know.
pub(super) fn doubts(flags: GpuFlags) -> impl Iterator<Item = &'static str> {
    let waits = "without the latency-hiding scheduler each collective is taken to be waited for, as before jaxlib 0.7";
    let heap = "the compiler's heap on GPUs takes up to 18 % more than what is live at once, which is what is counted";
    [heap].into_iter().chain((!flags.latency_hiding).then_some(waits))
}
