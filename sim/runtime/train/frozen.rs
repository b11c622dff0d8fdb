//! What of a job in which parts of the model are frozen has no rules.

use super::plan;
use crate::model::head::Loss;
use crate::model::style::Linears;
use crate::model::trained::{MODULES, Trained};
use crate::plan::torch::TorchPlan;
use crate::runtime::Refusal;

/// The first thing that has none.
pub(super) fn refuses(job: &TorchPlan, trained: &Trained) -> Option<Refusal> {
    let by_parts =
        matches!(job.loss, Loss::ChunkedGradients { .. } | Loss::FusedLinear | Loss::VocabularyChunked { .. });
    let list = [
        (job.compile, Refusal::new("frozen-compiled", "compiled blocks with frozen parameters").on("compile.blocks")),
        (
            job.autocast.is_some(),
            Refusal::new("frozen-autocast", "frozen parameters under torch.autocast").on("precision.autocast"),
        ),
        (
            job.tensor.splits(),
            Refusal::new("frozen-tensor-parallel", "frozen parameters under tensor parallelism").on("mesh.tp"),
        ),
        (job.pipeline.is_some(), Refusal::new("frozen-pipeline", "frozen parameters in a pipeline").on("mesh.pp")),
        (
            job.context > 1,
            Refusal::new("frozen-context-parallel", "frozen parameters where ranks share a sequence").on("mesh.cp"),
        ),
        (
            job.cuda_graphs,
            Refusal::new("frozen-graph", "a CUDA graph of a step with frozen parameters").on("framework.cuda_graphs"),
        ),
        (job.unpad, Refusal::new("frozen-unpad", "frozen parameters with packed tokens").on("attention.unpad")),
        (
            job.model.experts().is_some() && trained.lora.is_none(),
            Refusal::new("frozen-experts", "frozen parameters in a model with experts").on("trained.freeze"),
        ),
        (
            job.model.experts().is_some(),
            Refusal::new("lora-experts", "adapters in a model with experts").on("lora.modules"),
        ),
        (
            (!job.model.is_transformer() || job.model.has_gates()) && trained.lora.is_none(),
            Refusal::new(
                "frozen-mixers",
                "frozen parameters in a model with Mamba-2, gated DeltaNet or gated attention",
            )
            .on("trained.freeze"),
        ),
        (
            !job.model.is_transformer() || job.model.has_gates(),
            Refusal::new("lora-mixers", "adapters in a model with Mamba-2, gated DeltaNet or gated attention")
                .on("lora.modules"),
        ),
        (
            by_parts && !trained.head,
            Refusal::new("frozen-head-loss", "a loss that makes the head's gradient, with a frozen head")
                .on("loss.kind"),
        ),
        (
            job.fsdp.cpu_offload,
            Refusal::new("frozen-offload", "frozen parameters in the host's memory").on("fsdp.cpu_offload"),
        ),
        (
            !job.fsdp.wrap.modules.is_empty(),
            Refusal::new("frozen-module-units", "frozen parameters in modules that are FSDP units of their own")
                .on("fsdp.wrap"),
        ),
        (
            job.master_weights,
            Refusal::new("frozen-master-weights", "fp32 copies of a model in part frozen")
                .on("optimizer.master_weights"),
        ),
        (
            job.style.linears == Linears::EngineFp8,
            Refusal::new("frozen-engine", "frozen parameters in Transformer Engine's linears").on("framework.linears"),
        ),
    ];
    if let Some(refusal) = Refusal::first(list) {
        return Some(refusal);
    }
    let lora = trained.lora.as_ref()?;
    // All linears of a layer are those that it has.
    let every = lora.modules.len() == MODULES.len();
    let has = |module: &str| plan::has_linear(job, module);
    if every || lora.modules.iter().all(|module| has(module)) {
        return None;
    }
    let known: Vec<&str> =
        MODULES.iter().filter(|(_, module, _)| has(module)).flat_map(|(names, ..)| names.first()).copied().collect();
    let refusal = Refusal::new("lora-modules", "adapters beside linears that its layers have not").on("lora.modules");
    Some(refusal.instead(format!("write some of {}, or \"all-linear\"", known.join(", "))))
}
