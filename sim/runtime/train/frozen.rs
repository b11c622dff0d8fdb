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
        (job.compile, "frozen-compiled", "compiled blocks with frozen parameters", "compile.blocks"),
        (job.autocast.is_some(), "frozen-autocast", "frozen parameters under torch.autocast", "precision.autocast"),
        (job.tensor.splits(), "frozen-tensor-parallel", "frozen parameters under tensor parallelism", "mesh.tp"),
        (job.pipeline.is_some(), "frozen-pipeline", "frozen parameters in a pipeline", "mesh.pp"),
        (job.context > 1, "frozen-context-parallel", "frozen parameters where ranks share a sequence", "mesh.cp"),
        (job.cuda_graphs, "frozen-graph", "a CUDA graph of a step with frozen parameters", "framework.cuda_graphs"),
        (job.unpad, "frozen-unpad", "frozen parameters with packed tokens", "attention.unpad"),
        (
            job.model.experts().is_some(),
            "frozen-experts",
            "frozen parameters or adapters in a model with experts",
            if trained.lora.is_some() { "lora.modules" } else { "trained.freeze" },
        ),
        (
            by_parts && !trained.head,
            "frozen-head-loss",
            "a loss that makes the head's gradient, with a frozen head",
            "loss.kind",
        ),
        (job.fsdp.cpu_offload, "frozen-offload", "frozen parameters in the host's memory", "fsdp.cpu_offload"),
        (
            !job.fsdp.wrap.modules.is_empty(),
            "frozen-module-units",
            "frozen parameters in modules that are FSDP units of their own",
            "fsdp.wrap",
        ),
        (
            job.master_weights,
            "frozen-master-weights",
            "fp32 copies of a model in part frozen",
            "optimizer.master_weights",
        ),
        (
            job.style.linears == Linears::EngineFp8,
            "frozen-engine",
            "frozen parameters in Transformer Engine's linears",
            "framework.linears",
        ),
    ];
    let found = list.into_iter().find(|(applies, ..)| *applies);
    if let Some((_, code, problem, key)) = found {
        return Some(Refusal::new(code, problem).on(key));
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
