//! The pipeline of a job of the SPMD lane, by MaxText's own checks (`configs/types.py`).

use toml::Spanned;

use super::super::error::ScenarioError;
use super::super::reader::Reader;
use super::super::written;
use crate::model::ModelConfig;
use crate::runtime::spmd::{Mesh, Pipeline, Policy};

/// A pipeline where the mesh has stages; without them its keys mean nothing.
pub(super) fn pipeline(
    reader: &mut Reader<'_>,
    (table, at): (&written::Xla, &Spanned<written::Mesh>),
    (model, mesh): (&ModelConfig, Mesh),
    (batch, remat): (u64, Policy),
) -> Result<Option<Pipeline>, ScenarioError> {
    let stages = u64::from(mesh.stages());
    if stages < 2 {
        return match written_keys(table) {
            Some((key, at)) => {
                let problem = format!("xla.{key} is about a pipeline, and the mesh has no stages");
                Err(reader.plan(&at, problem, "write mesh.pipeline, or remove the key"))
            }
            None => Ok(None),
        };
    }
    lacks(reader, (table, at), (model, mesh))?;
    let (key, all) = (written::Xla::pipeline_parallel_layers.path, model.layers.count());
    let layers = match &table.pipeline_parallel_layers {
        Some(at) => reader.count_within(key, at, 1, all as i64)?,
        None => reader.assume(key, all, all),
    };
    let per_stage = table.num_layers_per_pipeline_stage.as_ref();
    let per_stage = reader.count_or(&written::Xla::num_layers_per_pipeline_stage, per_stage, 1)?;
    let repeats = match &table.num_pipeline_repeats {
        Some(at) => reader.count(&written::Xla::num_pipeline_repeats, at)?,
        None => {
            let repeats = (layers / (stages * per_stage)).max(1);
            reader.assume("xla.num_pipeline_repeats", repeats, repeats)
        }
    };
    if stages * per_stage * repeats != layers {
        let problem = format!(
            "stages × num_layers_per_pipeline_stage × num_pipeline_repeats = {stages} × {per_stage} × {repeats} = {}, and \
             {layers} blocks are in the pipeline",
            stages * per_stage * repeats
        );
        let keys = [&table.num_pipeline_repeats, &table.num_layers_per_pipeline_stage, &table.pipeline_parallel_layers];
        let at = keys.into_iter().flatten().next().map_or_else(|| at.span(), Spanned::span);
        let remedy = fits((model.layers.count(), layers), (stages, per_stage, repeats));
        return Err(reader.plan(&Spanned::new(at, ()), problem, remedy));
    }
    let delay = flag(
        reader,
        "pipeline_delay_activation_forwarding",
        table.pipeline_delay_activation_forwarding.as_ref(),
        false,
    );
    let least = stages * if delay { 2 } else { 1 };
    let written = table.num_pipeline_microbatches.as_ref();
    let micro_batches = reader.count_or(&written::Xla::num_pipeline_microbatches, written, least)?;
    let place = written.map_or_else(|| at.span(), Spanned::span);
    let place = Spanned::new(place, ());
    if !micro_batches.is_multiple_of(stages) {
        let problem = format!("num_pipeline_microbatches = {micro_batches} is no multiple of the {stages} stages");
        return Err(reader.plan(&place, problem, format!("write {least}, or a larger multiple of {stages}")));
    }
    if micro_batches < least {
        let problem = format!(
            "{micro_batches} micro-batches, and with pipeline_delay_activation_forwarding {stages} stages hold {least}"
        );
        return Err(reader.plan(&place, problem, format!("write num_pipeline_microbatches = {least}, or more")));
    }
    if !(batch * stages).is_multiple_of(micro_batches) {
        let problem = format!(
            "{micro_batches} micro-batches do not divide the {} sequences of the {stages} chips that are stages of one \
             another, {batch} of each",
            batch * stages
        );
        return Err(reader.plan(
            &place,
            problem,
            format!("write batch.micro, a multiple of {}", micro_batches / stages),
        ));
    }
    let iterations = flag(
        reader,
        "set_remat_policy_on_pipeline_iterations",
        table.set_remat_policy_on_pipeline_iterations.as_ref(),
        true,
    );
    if layers == model.layers.count() {
        nothing_outside(reader, table, iterations)?;
    }
    let remat = match (iterations, remat) {
        (false, _) => Policy::None,
        // An iteration's input is kept, and nothing else (`get_pipeline_remat_policy`).
        (true, Policy::None) => Policy::NAMED[1].1,
        (true, policy) => policy,
    };
    let gather_once = flag(reader, "pipeline_fsdp_ag_once", table.pipeline_fsdp_ag_once.as_ref(), false);
    Ok(Some(Pipeline {
        stages,
        layers,
        layers_per_stage: per_stage,
        repeats,
        micro_batches,
        delay,
        gather_once,
        remat,
    }))
}

/// What would make stages and blocks come out even.
fn fits((all, layers): (u64, u64), (stages, per_stage, repeats): (u64, u64, u64)) -> String {
    let once = stages * per_stage;
    if stages > all {
        return format!("the model has {all} blocks: write fewer stages in mesh.pipeline and mesh.dcn_pipeline");
    }
    if once > all {
        return format!("the model has {all} blocks: write num_layers_per_pipeline_stage = {} or less", all / stages);
    }
    // Around as often as the blocks allow, and once at least.
    let around = (layers / once).max(1);
    let mut keys = vec![];
    if around != repeats {
        keys.push(format!("xla.num_pipeline_repeats = {around}"));
    }
    if around * once != layers {
        keys.push(format!("xla.pipeline_parallel_layers = {}", around * once));
    }
    let rest = if around * once < all { ": the rest follow the pipeline" } else { "" };
    format!("write {}{rest}", keys.join(" and "))
}

/// Keys about blocks outside of the pipeline, where there are none.
fn nothing_outside(reader: &Reader<'_>, table: &written::Xla, iterations: bool) -> Result<(), ScenarioError> {
    let problem = "every block is in the pipeline";
    let outside = "or leave blocks outside with xla.pipeline_parallel_layers";
    if let Some(at) = table.scan_layers.as_ref().filter(|at| !at.get_ref()) {
        let problem =
            format!("scan_layers = false: {problem}, whose stages and iterations are laid out by keys of their own");
        return Err(reader.plan(at, problem, format!("remove the key, {outside}")));
    }
    if let Some(at) = table.remat_policy.as_ref().filter(|at| !iterations && at.get_ref() != "none") {
        let problem = format!(
            "remat_policy = {:?}: {problem}, and with set_remat_policy_on_pipeline_iterations = false its iterations keep \
             everything",
            at.get_ref()
        );
        let remedy = format!("write set_remat_policy_on_pipeline_iterations = true, or remove the policy, {outside}");
        return Err(reader.plan(at, problem, remedy));
    }
    Ok(())
}

fn flag(reader: &mut Reader<'_>, key: &str, written: Option<&Spanned<bool>>, default: bool) -> bool {
    reader.flag_or(&format!("xla.{key}"), written.map(|at| *at.get_ref()), default)
}

/// The first of a pipeline's keys that the file has.
fn written_keys(table: &written::Xla) -> Option<(&'static str, Spanned<()>)> {
    let counts = [
        ("num_layers_per_pipeline_stage", &table.num_layers_per_pipeline_stage),
        ("num_pipeline_repeats", &table.num_pipeline_repeats),
        ("num_pipeline_microbatches", &table.num_pipeline_microbatches),
        ("pipeline_parallel_layers", &table.pipeline_parallel_layers),
    ];
    let flags = [
        ("pipeline_delay_activation_forwarding", &table.pipeline_delay_activation_forwarding),
        ("pipeline_fsdp_ag_once", &table.pipeline_fsdp_ag_once),
        ("pipeline_fsdp_ag_per_repeat", &table.pipeline_fsdp_ag_per_repeat),
        ("set_remat_policy_on_pipeline_iterations", &table.set_remat_policy_on_pipeline_iterations),
        ("set_remat_policy_on_layers_per_stage", &table.set_remat_policy_on_layers_per_stage),
        ("scan_pipeline_iterations", &table.scan_pipeline_iterations),
        ("scan_layers_per_stage", &table.scan_layers_per_stage),
    ];
    let counts = counts.into_iter().filter_map(|(key, at)| Some((key, at.as_ref()?.span())));
    let mut all = counts.chain(flags.into_iter().filter_map(|(key, at)| Some((key, at.as_ref()?.span()))));
    all.next().map(|(key, span)| (key, Spanned::new(span, ())))
}

/// What a pipeline cannot have, or has and is not simulated.
fn lacks(
    reader: &Reader<'_>,
    (table, at): (&written::Xla, &Spanned<written::Mesh>),
    (model, mesh): (&ModelConfig, Mesh),
) -> Result<(), ScenarioError> {
    let several = table.num_layers_per_pipeline_stage.as_ref().is_some_and(|at| *at.get_ref() > 1);
    let keys = [
        (
            "pipeline_fsdp_ag_per_repeat = true",
            &table.pipeline_fsdp_ag_per_repeat,
            true,
            "weights fetched ahead of each repeat are not simulated on XLA",
            "write xla.pipeline_fsdp_ag_once = true, in place of xla.pipeline_fsdp_ag_per_repeat",
        ),
        (
            "set_remat_policy_on_layers_per_stage = true",
            &table.set_remat_policy_on_layers_per_stage,
            true,
            "MaxText's pipeline does not read it (e591f30cb)",
            "write xla.remat_policy, and set_remat_policy_on_pipeline_iterations",
        ),
        (
            "scan_pipeline_iterations = false",
            &table.scan_pipeline_iterations,
            false,
            "iterations written out one after the other are not simulated on XLA",
            "write scan_pipeline_iterations = true",
        ),
        (
            "scan_layers_per_stage = true",
            &table.scan_layers_per_stage,
            true,
            "a loop over a stage's blocks is not simulated on XLA",
            "write scan_layers_per_stage = false",
        ),
    ];
    for (key, written, value, problem, remedy) in keys {
        let applies = key != "scan_layers_per_stage = true" || several;
        if let Some(at) = written.as_ref().filter(|at| *at.get_ref() == value && applies) {
            return Err(reader.plan(at, format!("{key}: {problem}"), remedy));
        }
    }
    let once = table.pipeline_fsdp_ag_once.as_ref().filter(|at| *at.get_ref() && mesh.expert > 1);
    if let Some(at) = once {
        let problem = "pipeline_fsdp_ag_once gathers over fsdp, and weights lie on mesh.expert too";
        return Err(reader.plan(at, problem, "write mesh.fsdp for mesh.expert: there are no experts in a pipeline"));
    }
    let windows = model.layers.iter().any(|layer| layer.window() != model.layers.at(0).window());
    let cases = [
        (model.experts().is_some(), "experts in a pipeline are not simulated on XLA"),
        (windows, "stages run one program, and blocks here differ in how far they see"),
        (mesh.context > 1, "sequences shared in a pipeline are not simulated on XLA"),
        (
            mesh.data > 1 && mesh.dcn_data > 1,
            "replicas of a stage in a slice and over slices at once are not simulated on XLA",
        ),
    ];
    match cases.into_iter().find(|(applies, _)| *applies) {
        Some((_, problem)) => {
            let inside = format!("mesh.pipeline = 1 and mesh.fsdp = {}", mesh.fsdp * mesh.pipeline);
            let over = format!("mesh.dcn_pipeline = 1 and mesh.dcn_data = {}", mesh.dcn_data * mesh.dcn_pipeline);
            let remedy = match (mesh.pipeline > 1, mesh.dcn_pipeline > 1) {
                (true, true) => format!("write {inside} and {over}"),
                (true, false) => format!("write {inside}"),
                (false, _) => format!("write {over}"),
            };
            Err(reader.plan(at, problem, remedy))
        }
        None => Ok(()),
    }
}
