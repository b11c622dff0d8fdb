//! What DeepSpeed's pipeline engine leaves open of Megatron's keys, and what it does not have.

use crate::runtime::megatron::Engine;
use crate::scenario::entry::Runtime;
use crate::scenario::error::ScenarioError;
use crate::scenario::names::DEEPSPEED;
use crate::scenario::reader::Reader;
use crate::scenario::written;

/// Its pipelines load micro-batches by themselves (`_exec_load_micro_batch`).
pub(super) fn loads(reader: &Reader<'_>, table: &written::Megatron) -> Result<(), ScenarioError> {
    let problem = "DeepSpeed's pipeline engine loads micro-batches by itself";
    let remedy = "remove the key, or write runtime = \"megatron\"";
    match (&table.get_batch, &table.create_attention_mask_in_dataloader) {
        (Some(at), _) => Err(reader.plan(at, problem, remedy)),
        (None, Some(at)) => Err(reader.plan(at, problem, remedy)),
        (None, None) => Ok(()),
    }
}

/// Whose training loop runs Megatron's modules. DeepSpeed's refuses what it does not have: modules of Transformer Engine,
/// gradients that its own hooks add up, communication beside the computation.
pub(super) fn engine(
    reader: &Reader<'_>,
    (scenario, table): (&written::Scenario, &written::Megatron),
    runtime: Runtime,
) -> Result<Engine, ScenarioError> {
    if runtime != DEEPSPEED {
        return Ok(Engine::Core);
    }
    let local = table.implementation != Some(written::Modules::TransformerEngine);
    let fused = table.gradient_accumulation_fusion == Some(true);
    let reduces = table.overlap_grad_reduce == Some(true);
    let gathers = table.overlap_param_gather.as_ref().is_some_and(|at| *at.get_ref());
    let overlaps = table.tp_comm_overlap.as_ref().is_some_and(|at| *at.get_ref());
    let sequence = scenario.tensor_parallel.as_ref().is_some_and(|at| at.get_ref().sequence == Some(true));
    let context = scenario.mesh.get_ref().cp.as_ref().is_some_and(|at| *at.get_ref() > 1);
    let virtual_stages = scenario.pipeline.as_ref().and_then(|at| at.get_ref().virtual_stages.as_ref());
    let engine_loss =
        table.cross_entropy_fusion_impl.as_ref().is_some_and(|at| *at.get_ref() == written::FusedLoss::Te);
    let ahead = table.mtp_num_layers.as_ref().is_some_and(|at| *at.get_ref() != 0);
    let several = virtual_stages.is_some_and(|at| *at.get_ref() > 1);
    let cases = [
        (!local, "megatron.implementation = \"transformer_engine\"", "write megatron.implementation = \"local\""),
        (fused, "megatron.gradient_accumulation_fusion", "write megatron.gradient_accumulation_fusion = false"),
        (reduces, "megatron.overlap_grad_reduce", "write megatron.overlap_grad_reduce = false"),
        (gathers, "megatron.overlap_param_gather", "write megatron.overlap_param_gather = false"),
        (overlaps, "megatron.tp_comm_overlap", "write megatron.tp_comm_overlap = false"),
        (table.fp8.is_some(), "megatron.fp8", "remove megatron.fp8"),
        (
            engine_loss,
            "megatron.cross_entropy_fusion_impl = \"te\"",
            "write megatron.cross_entropy_fusion_impl = \"native\"",
        ),
        (ahead, "megatron.mtp_num_layers", "remove megatron.mtp_num_layers"),
        (table.recompute_modules.is_some(), "megatron.recompute_modules", "remove megatron.recompute_modules"),
        (sequence, "tensor_parallel.sequence", "write tensor_parallel.sequence = false"),
        (context, "mesh.cp", "write mesh.cp = 1, or runtime = \"deepspeed-zero\" for Ulysses without stages"),
        (several, "pipeline.virtual_stages", "write pipeline.virtual_stages = 1"),
    ];
    match cases.into_iter().find(|(applies, ..)| *applies) {
        None => Ok(Engine::DeepSpeed),
        Some((_, key, remedy)) => {
            let problem = format!("runtime is \"deepspeed\", which does not have {key}");
            Err(reader.plan(&scenario.runtime, problem, format!("{remedy}, or write runtime = \"megatron\"")))
        }
    }
}
