//! `--cp-comm-type` and `--hierarchical-context-parallel-sizes`: how ranks share a sequence. Only Transformer Engine's
//! attention knows how.

use crate::model::ModelConfig;
use crate::near::did_you_mean;
use crate::runtime::eager::{Parts, WAYS, Way};
use crate::runtime::megatron::{Block, Core, Implementation, Mesh, Sharing};
use crate::scenario::change::Change;
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written;

/// How the mesh's ranks share a sequence.
pub(super) fn sharing(
    reader: &mut Reader<'_>,
    (scenario, table): (&written::Scenario, &written::Megatron),
    (model, mesh, block): (&ModelConfig, Mesh, &Block),
) -> Result<Sharing, ScenarioError> {
    let Some(at) = scenario.mesh.get_ref().cp.as_ref().filter(|_| mesh.cp > 1) else {
        let alone = |key: &str| format!("{key} says how ranks share a sequence, and mesh.cp does not split it");
        let remedy = "write mesh.cp = 2 or more, or remove the key";
        if let Some(at) = &table.cp_comm_type {
            return Err(reader.plan(at, alone("cp_comm_type"), remedy));
        }
        if let Some(at) = &table.hierarchical_context_parallel_sizes {
            return Err(reader.plan(at, alone("hierarchical_context_parallel_sizes"), remedy));
        }
        return Ok(Sharing::ring());
    };
    if (block.implementation, block.core) != (Implementation::TransformerEngine, Core::Flash) {
        let problem = "context parallelism is Transformer Engine's, in its fused attention";
        let remedy = "write megatron.implementation = \"transformer_engine\" and megatron.attention = \"flash\", or \
                      mesh.cp = 1";
        return Err(reader.plan(at, problem, remedy));
    }
    let way = way(reader, table)?;
    if model.sliding_window.is_some() && !way.windows {
        let problem =
            format!("\"{}\" passes keys round a ring, and {} attends to a window of them", way.name, model.name);
        let remedy = "write megatron.cp_comm_type = \"all_gather\" or \"a2a\", or mesh.cp = 1";
        return Err(match &table.cp_comm_type {
            Some(at) => reader.plan(at, problem, remedy),
            None => reader.plan(at, problem, remedy),
        });
    }
    let inner = inner(reader, table, (way, mesh), model)?;
    let heads = match way.parts {
        Parts::Tokens => 1,
        Parts::Heads => u64::from(mesh.cp),
        Parts::Both => inner,
    };
    if let Some(at) = &table.cp_comm_type {
        splits(model, u64::from(mesh.tp), (way, heads))
            .map_err(|problem| reader.plan(at, problem, one_level(table)))?;
    }
    Ok(Sharing { way, heads: heads as u32 })
}

/// Whole heads for each of so many ranks, of those that tensor-parallel ranks leave.
fn splits(model: &ModelConfig, tp: u64, (way, ranks): (&Way, u64)) -> Result<(), String> {
    let counts = [(model.heads, "heads"), (model.kv_heads, "key-value heads")];
    let Some((count, what)) = counts.into_iter().find(|(count, _)| !count.is_multiple_of(tp * ranks)) else {
        return Ok(());
    };
    let (name, left) = (way.name, count / tp);
    Err(format!(
        "\"{name}\" spreads heads over {ranks} ranks, and tp = {tp} leaves {left} of {}'s {count} {what}",
        model.name
    ))
}

fn way(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<&'static Way, ScenarioError> {
    let Some(at) = &table.cp_comm_type else {
        return Ok(reader.assume("megatron.cp_comm_type", &WAYS[0], "p2p"));
    };
    Way::find(at.get_ref()).ok_or_else(|| {
        let known: Vec<String> = WAYS.iter().map(|one| format!("\"{}\" ({})", one.name, one.about)).collect();
        let hint = did_you_mean(at.get_ref(), WAYS.iter().map(|one| one.name));
        let problem = format!("no way to share a sequence is called {:?}{hint}", at.get_ref());
        reader.unknown(at, problem, format!("write megatron.cp_comm_type = {}", known.join(" or ")))
    })
}

/// Ranks of an inner group, whose neighbours have each other's heads; the other number is how many such groups there are.
fn inner(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    (way, mesh): (&Way, Mesh),
    model: &ModelConfig,
) -> Result<u64, ScenarioError> {
    let cp = u64::from(mesh.cp);
    let sizes = table.hierarchical_context_parallel_sizes.as_ref();
    match (way.parts, sizes) {
        (Parts::Both, Some(at)) => match at.get_ref()[..] {
            [heads, tokens] if heads > 1 && tokens > 1 && heads.checked_mul(tokens) == Some(cp as i64) => {
                Ok(heads as u64)
            }
            _ => {
                let problem = format!("{:?} are not two numbers above 1 whose product is mesh.cp = {cp}", at.get_ref());
                Err(reader.plan(at, problem, two_levels(model, (way, mesh)).unwrap_or_else(|| one_level(table))))
            }
        },
        (Parts::Both, None) => {
            let problem = format!("\"{}\" spreads heads over the ranks of a group and tokens over groups", way.name);
            let remedy = two_levels(model, (way, mesh)).unwrap_or_else(|| one_level(table));
            let Some(at) = &table.cp_comm_type else { unreachable!("no default has two levels") };
            Err(reader.plan(at, problem, remedy))
        }
        (_, Some(at)) => {
            let problem = format!("\"{}\" has one level, and hierarchical_context_parallel_sizes two", way.name);
            let two = Change::set("megatron.cp_comm_type", "a2a+p2p");
            let or = if reader.reading([&two]).is_empty() { String::new() } else { format!(", or write {two}") };
            Err(reader.plan(at, problem, format!("remove the key{or}")))
        }
        _ => Ok(1),
    }
}

/// Two sizes that the mesh and the heads allow, the largest group first, as a remedy; none if there are none.
fn two_levels(model: &ModelConfig, (way, mesh): (&Way, Mesh)) -> Option<String> {
    let cp = u64::from(mesh.cp);
    let fits = |&inner: &u64| cp.is_multiple_of(inner) && splits(model, u64::from(mesh.tp), (way, inner)).is_ok();
    let inner = (2..=cp / 2).rev().find(fits)?;
    let key = "megatron.hierarchical_context_parallel_sizes";
    Some(format!("write {key} = [{inner}, {}]: ranks of a group, and groups", cp / inner))
}

/// Ways that any heads allow, as a remedy.
fn one_level(table: &written::Megatron) -> String {
    let ways = "write megatron.cp_comm_type = \"p2p\" or \"all_gather\"";
    match &table.hierarchical_context_parallel_sizes {
        Some(_) => format!("{ways}, and remove hierarchical_context_parallel_sizes"),
        None => ways.to_owned(),
    }
}
