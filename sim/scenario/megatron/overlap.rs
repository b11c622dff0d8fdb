//! What hides experts' exchanges: `overlap_moe_expert_parallel_comm`, another micro-batch's computation;
//! `moe_shared_expert_overlap`, the shared experts'; and what they ask for (`core/transformer/transformer_config.py`,
//! `__post_init__`, 0.16).

use toml::Spanned;

use crate::model::ModelConfig;
use crate::runtime::megatron::{Block, Mesh, Mixture, Recompute, TokenDispatcher};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written::{self, Module, Waited};

/// The key, if it is on and experts are spread over ranks.
pub(super) fn asked<'t>(
    reader: &mut Reader<'_>,
    table: &'t written::Megatron,
    (model, mesh): (&ModelConfig, Mesh),
) -> Result<Option<&'t Spanned<bool>>, ScenarioError> {
    let Some(at) = table.overlap_moe_expert_parallel_comm.as_ref().filter(|at| *at.get_ref()) else {
        if table.overlap_moe_expert_parallel_comm.is_none() && model.experts().is_some() && mesh.ep > 1 {
            reader.flag_or("megatron.overlap_moe_expert_parallel_comm", None, false);
        }
        return Ok(None);
    };
    if model.experts().is_none() {
        let problem = format!("the key says how experts are run, and {} has none", model.name);
        return Err(reader.plan(at, problem, "remove the key"));
    }
    if mesh.ep == 1 {
        let problem =
            "overlap_moe_expert_parallel_comm hides what ranks with different experts exchange, and all have all";
        return Err(reader.plan(at, problem, "write mesh.ep = 2 or more, or remove the key"));
    }
    Ok(Some(at))
}

/// Whether the rest of the job goes with it.
pub(super) fn check(
    reader: &mut Reader<'_>,
    key: Option<&Spanned<bool>>,
    (mixture, block): (Option<Mixture>, &Block),
    (pp, overlap_p2p): (u32, bool),
) -> Result<(), ScenarioError> {
    let Some(key) = key else { return Ok(()) };
    if pp > 1 && !overlap_p2p {
        let problem = "overlap_moe_expert_parallel_comm runs a forward and a backward at once, and with \
                       pipeline.overlap_p2p = false each waits for its messages";
        return Err(reader.plan(key, problem, "remove pipeline.overlap_p2p, or overlap_moe_expert_parallel_comm"));
    }
    if matches!(block.recompute, Recompute::Uniform { .. } | Recompute::Block { .. }) {
        let problem =
            "overlap_moe_expert_parallel_comm cuts blocks into parts, and megatron.recompute runs whole ones again";
        return Err(reader.plan(key, problem, "write megatron.recompute = \"none\" or \"core_attn\""));
    }
    if let Some(run) = mixture.filter(|run| !run.dispatcher.row().combines) {
        let problem = format!(
            "overlap_moe_expert_parallel_comm is for the dispatchers \"alltoall\" and \"flex\", not \"{}\"",
            run.dispatcher.name()
        );
        return Err(reader.plan(key, problem, "write megatron.moe_token_dispatcher_type = \"alltoall\" or \"flex\""));
    }
    Ok(())
}

/// Whether weight gradients are made later (`delay_wgrad_compute`).
pub(super) fn delays(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<bool, ScenarioError> {
    let together = table.overlap_moe_expert_parallel_comm.as_ref().is_some_and(|at| *at.get_ref());
    match &table.delay_wgrad_compute {
        Some(at) if *at.get_ref() && !together => {
            let problem =
                "delay_wgrad_compute overlaps weight gradients with exchanges of experts, and none are overlapped";
            Err(reader.plan(at, problem, "write megatron.overlap_moe_expert_parallel_comm = true, or remove the key"))
        }
        Some(at) if *at.get_ref() && table.gradient_accumulation_fusion == Some(false) => {
            let problem = "delay_wgrad_compute without gradient_accumulation_fusion is not simulated";
            Err(reader.plan(at, problem, "write megatron.gradient_accumulation_fusion = true, or remove the key"))
        }
        Some(at) if *at.get_ref() && table.tp_comm_overlap.as_ref().is_some_and(|at| *at.get_ref()) => {
            let problem =
                "Transformer Engine leaves no weight gradients for later whose matmuls overlap with exchanges";
            Err(reader.plan(at, problem, "write megatron.tp_comm_overlap = false, or remove the key"))
        }
        Some(at) => Ok(*at.get_ref()),
        None if together => Ok(reader.flag_or("megatron.delay_wgrad_compute", None, false)),
        None => Ok(false),
    }
}

/// Whether shared experts run beside the dispatcher (`moe_shared_expert_overlap`).
pub(super) fn shared(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (model, dispatcher): (&ModelConfig, TokenDispatcher),
) -> Result<bool, ScenarioError> {
    let has_some = model.experts().is_some_and(|experts| experts.shared > 0);
    let Some(at) = table.moe_shared_expert_overlap.as_ref().filter(|at| *at.get_ref()) else {
        let written = table.moe_shared_expert_overlap.is_some();
        let assumes = has_some && dispatcher.row().overlaps_shared && !written;
        return Ok(assumes && reader.flag_or("megatron.moe_shared_expert_overlap", None, false));
    };
    let on = |key: &Option<Spanned<bool>>| key.as_ref().is_some_and(|at| *at.get_ref());
    let again = table.recompute_modules.as_ref().is_some_and(|at| at.get_ref().contains(&Module::SharedExperts));
    let cases = [
        (
            !has_some,
            format!("moe_shared_expert_overlap overlaps shared experts with exchanges, and {} has none", model.name),
            "remove the key",
        ),
        (
            !dispatcher.row().overlaps_shared,
            format!("moe_shared_expert_overlap is for the dispatcher \"alltoall\", not \"{}\"", dispatcher.name()),
            "write megatron.moe_token_dispatcher_type = \"alltoall\", or remove the key",
        ),
        (
            on(&table.overlap_moe_expert_parallel_comm),
            "moe_shared_expert_overlap and overlap_moe_expert_parallel_comm both fill the time of exchanges".to_owned(),
            "remove one of the two keys",
        ),
        (
            again,
            "moe_shared_expert_overlap cuts shared experts into parts, and recompute_modules runs all of them again"
                .to_owned(),
            "remove \"shared_experts\" from the list, or the key",
        ),
    ];
    match cases.into_iter().find(|(applies, ..)| *applies) {
        Some((_, problem, remedy)) => Err(reader.plan(at, problem, remedy)),
        None => Ok(true),
    }
}

/// Whether collectives that are waited for at once are issued on the stream that waits (`waited_collectives`).
pub(super) fn in_line(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    shared_overlap: bool,
) -> Result<bool, ScenarioError> {
    match &table.waited_collectives {
        Some(at) if !shared_overlap => {
            let problem =
                "waited_collectives says which stream exchanges are on, which matters where others overlap with them";
            Err(reader.plan(at, problem, "write megatron.moe_shared_expert_overlap = true, or remove the key"))
        }
        Some(at) => Ok(*at.get_ref() == Waited::CurrentStream),
        None if shared_overlap => Ok(reader.assume("megatron.waited_collectives", true, "current_stream")),
        None => Ok(false),
    }
}
