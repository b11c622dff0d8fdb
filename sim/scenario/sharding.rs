//! The tables `[fsdp]` and `[fsdp1]` as understood: what is prefetched, and how parameters are sharded. [`super::wrap`] says what
//! is wrapped.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::keys::row::Key;
use super::names::{DDP, FSDP1, SINGLE_DEVICE};
use super::reader::Reader;
use super::{wrap, written};
use crate::model::graph::Param;
use crate::model::head::{self, Loss};
use crate::model::style::Style;
use crate::model::tensor::TensorParallel;
use crate::model::{ModelConfig, block};
use crate::program::DType;
use crate::runtime::fsdp;
use crate::runtime::fsdp::{BackwardPrefetch, Fsdp, MixedPrecision, One, Reshard, Version, Wrap};

/// The sharding of a job.
pub(super) fn fsdp(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
    (model, expert_parallel): (&ModelConfig, bool),
    (shard, replicate, pipelined): (u32, u32, bool),
    mixed_precision: MixedPrecision,
) -> Result<Fsdp, ScenarioError> {
    let written = &scenario.fsdp;
    if runtime == DDP {
        return Ok(whole(model, (shard, replicate), mixed_precision));
    }
    if runtime == SINGLE_DEVICE {
        return alone(reader, scenario, model, (shard, replicate), mixed_precision);
    }
    let version = version(reader, scenario, runtime)?;
    let wrap = wrap::wrap(reader, scenario, model, (shard, version, pipelined))?;
    let second_dims = second_dims(reader, scenario, model, (shard, version, &wrap))?;
    let small = |reader: &mut Reader<'_>, key: &Key, at: &Option<Spanned<i64>>, default| {
        reader.count_or(key, at.as_ref(), default).map(|count| count as usize)
    };
    // Where the host waits for the counts of rows, torchtitan names what is to be prefetched.
    let prefetch = u64::from(expert_parallel);
    let forward_prefetch = small(reader, &written::Fsdp::forward_prefetch, &written.forward_prefetch, prefetch)?;
    let (mut backward_prefetch, mut reduce_scatter_buffers, mut unshard_in_backward) =
        (0, 1, written.unshard_in_backward.unwrap_or(true));
    if version == Version::Two {
        backward_prefetch = small(reader, &written::Fsdp::backward_prefetch, &written.backward_prefetch, prefetch)?;
        reduce_scatter_buffers =
            small(reader, &written::Fsdp::reduce_scatter_buffers, &written.reduce_scatter_buffers, 1)?;
        unshard_in_backward = reader.flag(&written::Fsdp::unshard_in_backward, written.unshard_in_backward);
    } else if let Some(at) = written.backward_prefetch.as_ref().or(written.reduce_scatter_buffers.as_ref()) {
        let problem = "explicit prefetch in backward and reduce_scatter_buffers are settings of fsdp2";
        return Err(reader.plan(at, problem, "remove the key; fsdp1 has [fsdp1] backward_prefetch instead"));
    }
    let config = Fsdp {
        version,
        shard,
        replicate,
        wrap,
        mixed_precision,
        forward_prefetch,
        backward_prefetch,
        prefetches_ends: expert_parallel && forward_prefetch > 0 && backward_prefetch > 0,
        second_dims,
        reduce_scatter_buffers,
        unshard_in_backward,
        cpu_offload: reader.flag(&written::Fsdp::cpu_offload, written.cpu_offload),
    };
    config.check().map_err(|problem| {
        let remedy = "change it, or write runtime = \"fsdp2\"";
        reader.plan(&scenario.runtime, problem.to_string(), remedy)
    })?;
    Ok(config)
}

/// One device: nothing is sharded, so there is nothing to set.
fn alone(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (shard, replicate): (u32, u32),
    mixed_precision: MixedPrecision,
) -> Result<Fsdp, ScenarioError> {
    if shard * replicate > 1 {
        let problem = format!("runtime = \"single_device\" is one device, and the mesh has {}", shard * replicate);
        // Of several nodes, chips are so many of each.
        let alone = if scenario.topology.nodes.is_some() { " without topology.nodes" } else { "" };
        let remedy = format!("write topology.chips = 1{alone}, or runtime = \"fsdp2\"");
        return Err(reader.plan(&scenario.runtime, problem, remedy));
    }
    if let Some(at) = &scenario.fsdp1 {
        let problem = "[fsdp1] shards a model, and the runtime is one device";
        return Err(reader.plan(at, problem, "remove the table, or write runtime = \"fsdp1\""));
    }
    if scenario.fsdp != written::Fsdp::default() {
        let problem = "[fsdp] shards a model, and the runtime is one device";
        return Err(reader.plan(&scenario.runtime, problem, "remove the table, or write runtime = \"fsdp2\""));
    }
    Ok(whole(model, (shard, replicate), mixed_precision))
}

/// Nothing is sharded.
fn whole(model: &ModelConfig, (shard, replicate): (u32, u32), mixed_precision: MixedPrecision) -> Fsdp {
    let blocks = vec![None; model.layers.count() as usize];
    Fsdp {
        version: Version::Unsharded,
        shard,
        replicate,
        wrap: Wrap::of_blocks(blocks, Reshard::Never),
        mixed_precision,
        forward_prefetch: 0,
        backward_prefetch: 0,
        prefetches_ends: false,
        second_dims: vec![],
        reduce_scatter_buffers: 1,
        unshard_in_backward: true,
        cpu_offload: false,
    }
}

/// The implementation, with the settings only it has.
fn version(reader: &mut Reader<'_>, scenario: &written::Scenario, runtime: Runtime) -> Result<Version, ScenarioError> {
    if runtime != FSDP1 {
        let Some(at) = &scenario.fsdp1 else { return Ok(Version::Two) };
        let problem = "[fsdp1] sets what fully_shard does not have, and the runtime is fsdp2";
        return Err(reader.plan(at, problem, "remove the table, or write runtime = \"fsdp1\""));
    }
    let empty = written::Fsdp1::default();
    let one = scenario.fsdp1.as_ref().map_or(&empty, |at| at.get_ref());
    let backward_prefetch = match one.backward_prefetch {
        Some(written::BackwardPrefetch::Pre) => BackwardPrefetch::Pre,
        Some(written::BackwardPrefetch::Post) => BackwardPrefetch::Post,
        Some(written::BackwardPrefetch::None) => BackwardPrefetch::None,
        None => reader.assume("fsdp1.backward_prefetch", BackwardPrefetch::Pre, "pre"),
    };
    Ok(Version::One(One {
        use_orig_params: reader.flag(&written::Fsdp1::use_orig_params, one.use_orig_params),
        backward_prefetch,
        limit_all_gathers: reader.flag(&written::Fsdp1::limit_all_gathers, one.limit_all_gathers),
        always_pads: one.always_pads.unwrap_or(false),
    }))
}

/// Parameters that are sharded on their second dimension (`shard_placement_fn`).
fn second_dims(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (shard, version, wrap): (u32, Version, &Wrap),
) -> Result<Vec<String>, ScenarioError> {
    let Some(at) = &scenario.fsdp.shard_dim_1 else { return Ok(vec![]) };
    let refuse = |problem: String, remedy: &str| Err(reader.plan(at, problem, remedy));
    if version != Version::Two {
        let problem = "fsdp1 cuts flat parameters, whatever their dimensions".to_owned();
        return refuse(problem, "remove fsdp.shard_dim_1, or write runtime = \"fsdp2\"");
    }
    if let Some(ranks) = wrap.post_forward().first() {
        let problem = format!(
            "PyTorch fails with parameters sharded on dimension 1 and reshard_after_forward = {ranks} (IndexError in \
             _reassemble_all_gather_outputs)"
        );
        return refuse(problem, "write reshard_after_forward = true or false, or remove fsdp.shard_dim_1");
    }
    if model.experts().is_some() || scenario.mesh.get_ref().tp.as_ref().is_some_and(|tp| *tp.get_ref() > 1) {
        let problem = "sharding on dimension 1 is simulated for dense models without tensor parallelism".to_owned();
        return refuse(problem, "remove fsdp.shard_dim_1");
    }
    let dims = block::dims(model, 1, 1, TensorParallel::NONE);
    // Layers of a transformer without experts have matrices of the same names and sizes.
    let kinds = if model.is_transformer() { &model.layers.used()[..1] } else { model.layers.used() };
    let mut graphs = vec![block::embedding(model, dims, DType::Fp32, Style::default())];
    graphs.extend(kinds.iter().map(|kind| block::block(model, dims, DType::Fp32, kind, Style::default())));
    graphs.push(head::head(model, dims, DType::Fp32, (Loss::default(), false), None).graph);
    let params: Vec<&Param> = graphs.iter().flat_map(|graph| &graph.params).filter(|param| param.cols > 1).collect();
    for name in at.get_ref() {
        let named = |param: &&&Param| fsdp::names_parameter(name, param.name);
        let Some(_) = params.iter().find(named) else {
            let mut known: Vec<&str> = params.iter().map(|param| param.name).collect();
            known.dedup();
            let problem = format!("{} has no matrix whose name ends in {name:?}", model.name);
            return refuse(problem, &format!("name some of {}", known.join(", ")));
        };
        if let Some(param) = params.iter().filter(named).find(|param| !param.cols.is_multiple_of(shard.into())) {
            let problem = format!(
                "dimension 1 of {} is {}, which {shard} ranks do not divide: PyTorch refuses that",
                param.name, param.cols
            );
            return refuse(problem, "name others, or change mesh.dp_shard");
        }
    }
    Ok(at.get_ref().clone())
}
