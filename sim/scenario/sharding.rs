//! The tables `[fsdp]` and `[fsdp1]` as understood: what is wrapped, when it is resharded, what is prefetched.

use toml::Spanned;

use super::error::ScenarioError;
use super::registry::Runtime;
use super::train::{FSDP1, SINGLE_DEVICE};
use super::understood::{MOST_SMALL, Reader};
use super::{gate, written};
use crate::model::ModelConfig;
use crate::runtime::fsdp::{BackwardPrefetch, Fsdp, MixedPrecision, One, Reshard, Version, Wrap};

/// The sharding of a job.
pub(super) fn fsdp(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
    (model, spread): (&ModelConfig, bool),
    (shard, replicate, pipelined): (u32, u32, bool),
    mixed_precision: MixedPrecision,
) -> Result<Fsdp, ScenarioError> {
    let written = &scenario.fsdp;
    if runtime == SINGLE_DEVICE {
        return alone(reader, scenario, model, (shard, replicate), mixed_precision);
    }
    let version = version(reader, scenario, runtime)?;
    let wrap = wrap(reader, written, model, (shard, version, pipelined))?;
    let small = |reader: &mut Reader<'_>, key, at: &Option<Spanned<i64>>, least, default| {
        reader.count_or(key, at.as_ref(), least, MOST_SMALL, default).map(|count| count as usize)
    };
    // Where the host waits for the counts of rows, torchtitan names what is to be prefetched.
    let prefetch = u64::from(spread);
    let forward_prefetch = small(reader, "fsdp.forward_prefetch", &written.forward_prefetch, 0, prefetch)?;
    let (mut backward_prefetch, mut reduce_scatter_buffers, mut unshard_in_backward) =
        (0, 1, written.unshard_in_backward.unwrap_or(true));
    if version == Version::Two {
        backward_prefetch = small(reader, "fsdp.backward_prefetch", &written.backward_prefetch, 0, prefetch)?;
        reduce_scatter_buffers = small(reader, "fsdp.reduce_scatter_buffers", &written.reduce_scatter_buffers, 1, 1)?;
        unshard_in_backward = reader.flag("fsdp.unshard_in_backward", written.unshard_in_backward, true);
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
        prefetches_ends: spread && forward_prefetch > 0 && backward_prefetch > 0,
        second_dims: vec![],
        reduce_scatter_buffers,
        unshard_in_backward,
        cpu_offload: reader.flag("fsdp.cpu_offload", written.cpu_offload, false),
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
        return Err(reader.plan(&scenario.runtime, problem, "write topology.chips = 1, or runtime = \"fsdp2\""));
    }
    if let Some(at) = &scenario.fsdp1 {
        let problem = "[fsdp1] shards a model, and the runtime is one device";
        return Err(reader.plan(at, problem, "remove the table, or write runtime = \"fsdp1\""));
    }
    if scenario.fsdp != written::Fsdp::default() {
        let problem = "[fsdp] shards a model, and the runtime is one device";
        return Err(reader.plan(&scenario.runtime, problem, "remove the table, or write runtime = \"fsdp2\""));
    }
    let blocks = vec![None; model.layers as usize];
    Ok(Fsdp {
        version: Version::Unsharded,
        shard,
        replicate,
        wrap: Wrap { blocks, embedding: None, head: None, root: Reshard::Never, apart: false },
        mixed_precision,
        forward_prefetch: 0,
        backward_prefetch: 0,
        prefetches_ends: false,
        second_dims: vec![],
        reduce_scatter_buffers: 1,
        unshard_in_backward: true,
        cpu_offload: false,
    })
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
        None => reader.assume("fsdp1.backward_prefetch", BackwardPrefetch::Pre, "\"pre\""),
    };
    Ok(Version::One(One {
        use_orig_params: reader.flag("fsdp1.use_orig_params", one.use_orig_params, false),
        backward_prefetch,
        limit_all_gathers: reader.flag("fsdp1.limit_all_gathers", one.limit_all_gathers, true),
        always_pads: one.always_pads.unwrap_or(false),
    }))
}

fn reshard(reader: &Reader<'_>, at: &Spanned<written::Reshard>, shard: u32) -> Result<Reshard, ScenarioError> {
    match *at.get_ref() {
        written::Reshard::Flag(true) => Ok(Reshard::Always),
        written::Reshard::Flag(false) => Ok(Reshard::Never),
        written::Reshard::Ranks(ranks) => gate::post_forward(reader, at, ranks, shard),
    }
}

fn wrap(
    reader: &mut Reader<'_>,
    written: &written::Fsdp,
    model: &ModelConfig,
    (shard, version, pipelined): (u32, Version, bool),
) -> Result<Wrap, ScenarioError> {
    let layers = model.layers as usize;
    let root_only = matches!(written.wrap.as_ref().map(Spanned::get_ref), Some(written::Wrap::Root));
    let policy = match &written.reshard_after_forward {
        Some(at) => reshard(reader, at, shard)?,
        None if root_only && version == Version::Two => reader.assume(
            "fsdp.reshard_after_forward",
            Reshard::Never,
            "false (fully_shard keeps the root's parameters)",
        ),
        // torchtitan's default: no gathering for each micro-batch.
        None if pipelined => reader.assume("fsdp.reshard_after_forward", Reshard::Never, "false"),
        None => reader.assume("fsdp.reshard_after_forward", Reshard::Always, "true"),
    };
    let root = match &written.root_reshard_after_forward {
        Some(at) => reshard(reader, at, shard)?,
        // `fully_shard(model, reshard_after_forward=…)` with nothing else wrapped: the argument is the root's.
        None if root_only && written.reshard_after_forward.is_some() => policy,
        // FSDP1 has one sharding strategy for all units; fully_shard keeps the root's parameters by default.
        None if version != Version::Two => policy,
        None => Reshard::Never,
    };
    let mut wrap = Wrap { blocks: vec![Some(policy); layers], embedding: None, head: None, apart: false, root };
    match &written.wrap {
        None => {
            reader.assume("fsdp.wrap", (), "\"block\"");
        }
        Some(at) => match at.get_ref() {
            written::Wrap::Block => {}
            written::Wrap::Root => wrap.blocks.fill(None),
            written::Wrap::Torchtitan => {
                wrap.embedding = Some(policy);
                // In a pipeline only "always" reshards, and does so here too.
                wrap.head = Some(if pipelined { policy } else { Reshard::Never });
            }
            written::Wrap::LlmFoundry if version == Version::Two => {
                let problem = "llm-foundry wraps its modules with fsdp1; fsdp2 keeps tied tables in the root's group";
                return Err(reader.plan(at, problem, "write wrap = \"block\", or runtime = \"fsdp1\""));
            }
            written::Wrap::LlmFoundry => {
                (wrap.embedding, wrap.head, wrap.apart) = (Some(policy), Some(policy), true);
            }
            written::Wrap::Every(every) => {
                let every = (*every).clamp(0, MOST_SMALL) as usize;
                if every == 0 {
                    return Err(reader.plan(at, "fsdp.wrap.every = 0 wraps nothing", "write 1 or more, or \"root\""));
                }
                for (layer, block) in wrap.blocks.iter_mut().enumerate() {
                    *block = layer.is_multiple_of(every).then_some(policy);
                }
            }
            written::Wrap::Blocks(blocks) => {
                wrap.blocks.fill(None);
                if blocks.is_empty() {
                    return Err(reader.plan(at, "fsdp.wrap.blocks names no block", "name some, or write \"root\""));
                }
                for &layer in blocks {
                    let slot = usize::try_from(layer).ok().and_then(|layer| wrap.blocks.get_mut(layer));
                    let Some(slot) = slot else {
                        let problem = format!("fsdp.wrap names block {layer}, and {} has {layers}", model.name);
                        return Err(reader.plan(at, problem, format!("name blocks 0 to {}", layers - 1)));
                    };
                    *slot = Some(policy);
                }
            }
        },
    }
    for change in &written.overrides {
        let (first, end) = *change.blocks.get_ref();
        if first < 0 || first >= end || end > layers as i64 {
            let problem = format!("blocks [{first}, {end}] is not a range of the {layers} blocks");
            return Err(reader.plan(&change.blocks, problem, "write [first, one after the last]"));
        }
        let policy = reshard(reader, &change.reshard_after_forward, shard)?;
        let range = &mut wrap.blocks[first as usize..end as usize];
        if range.iter().any(Option::is_none) {
            let problem = format!("blocks [{first}, {end}] are not all wrapped, so they have no policy of their own");
            return Err(reader.plan(&change.blocks, problem, "wrap them, or override only wrapped blocks"));
        }
        range.fill(Some(policy));
    }
    Ok(wrap)
}
