//! Axes of the mesh: how many chips each has within a slice and over slices, by MaxText's names (`ici_*_parallelism`,
//! `dcn_*_parallelism`), and what lies on them.

use toml::Spanned;

use super::super::keys::row::Key;
use super::gpu;
use super::rules::{AXES, Role, Rules};
use crate::hardware::Topology;
use crate::hardware::torus::{Assignment, assign};
use crate::model::ModelConfig;
use crate::plan::xla::{Across, Mesh};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written;

/// Axes whose chips share their tokens, within a slice and over slices.
pub(in crate::scenario) fn sharers(mesh: &written::Mesh) -> Vec<&Option<Spanned<i64>>> {
    let rules = Rules::of(mesh);
    let axes = [
        [&mesh.data, &mesh.dcn_data],
        [&mesh.fsdp, &mesh.dcn_fsdp],
        [&mesh.fsdp_transpose, &mesh.dcn_fsdp_transpose],
        [&mesh.context, &mesh.dcn_context],
        [&mesh.expert, &mesh.dcn_expert],
        [&mesh.tensor, &mesh.dcn_tensor],
    ];
    let shares = |name: &str| matches!(rules.role(name), Ok(Role::Context | Role::ExpertsOnly | Role::Tensor));
    AXES.iter().zip(axes).filter(|(name, _)| shares(name)).flat_map(|(_, sizes)| sizes).collect()
}

/// Sizes of [`AXES`].
type Sizes = [u64; 6];

/// Axes, whose product is the chips there are; what is left open takes what the others leave: `dcn_data` the slices, `fsdp` a
/// slice's chips.
pub(super) fn mesh(
    reader: &mut Reader<'_>,
    (written, rules): (&Spanned<written::Mesh>, &Rules),
    topology: &Topology,
) -> Result<Mesh, ScenarioError> {
    let axes = written.get_ref();
    let (dcn_pipeline, across) = over_slices(reader, written, topology)?;
    let (pipeline, inside) = in_slice(reader, written, topology)?;
    let dcn = [
        &axes.dcn_data,
        &axes.dcn_fsdp,
        &axes.dcn_fsdp_transpose,
        &axes.dcn_context,
        &axes.dcn_expert,
        &axes.dcn_tensor,
    ];
    let at = |axis: usize| dcn[axis].as_ref().map_or_else(|| written.span(), Spanned::span);
    for (axis, name) in AXES.iter().enumerate().filter(|(axis, _)| *axis > 0 && across[*axis] > 1) {
        let outside =
            AXES.iter().zip(inside).take(axis).find(|(_, size)| *size > 1).map(|(name, _)| format!("mesh.{name}"));
        let within = AXES.iter().zip(across).skip(axis + 1).find(|(_, size)| *size > 1);
        let within = within.map(|(name, _)| format!("mesh.dcn_{name}"));
        let stages = (pipeline > 1).then(|| "mesh.pipeline".to_owned());
        if let Some(other) = stages.or(outside).or(within) {
            let problem = format!("mesh.dcn_{name} together with {other} is not simulated");
            let remedy = format!("write {other} = 1, or mesh.dcn_{name} = 1 and mesh.dcn_data for its slices");
            return Err(reader.plan(&Spanned::new(at(axis), ()), problem, remedy));
        }
    }
    let mesh = roles(reader, (written, rules), (inside, across))?;
    let mesh = Mesh { dcn_pipeline: dcn_pipeline as u32, pipeline: pipeline as u32, ..mesh };
    splits(reader, written, (mesh, topology))?;
    Ok(mesh)
}

/// Stages that are slices, and slices of each axis.
fn over_slices(
    reader: &mut Reader<'_>,
    written: &Spanned<written::Mesh>,
    topology: &Topology,
) -> Result<(u64, Sizes), ScenarioError> {
    let axes = written.get_ref();
    let slices = u64::from(topology.slices());
    let pipeline = reader.count_or(&written::Mesh::dcn_pipeline, axes.dcn_pipeline.as_ref(), 1)?;
    // With one slice there is nothing to choose.
    let mut axis = |key: &Key, at: &Option<Spanned<i64>>| match at {
        None if slices == 1 => Ok(1),
        at => reader.count_or(key, at.as_ref(), 1),
    };
    let others = [
        axis(&written::Mesh::dcn_fsdp, &axes.dcn_fsdp)?,
        axis(&written::Mesh::dcn_fsdp_transpose, &axes.dcn_fsdp_transpose)?,
        axis(&written::Mesh::dcn_context, &axes.dcn_context)?,
        axis(&written::Mesh::dcn_expert, &axes.dcn_expert)?,
        axis(&written::Mesh::dcn_tensor, &axes.dcn_tensor)?,
    ];
    // Wider than any one of them, each of which may be the most ranks there are.
    let all = others.iter().fold(u128::from(pipeline), |all, &size| all * u128::from(size));
    let data = match &axes.dcn_data {
        Some(at) => reader.count(&written::Mesh::dcn_data, at)?,
        None => {
            let rest = u64::try_from(u128::from(slices) / all).unwrap_or(1).max(1);
            reader.assume("mesh.dcn_data", rest, rest)
        }
    };
    if u128::from(data) * all != u128::from(slices) {
        let named = [("dcn_pipeline", pipeline)].into_iter().chain(AXES[1..].iter().copied().zip(others));
        let named: Vec<String> = named
            .filter(|(_, size)| *size > 1)
            .map(|(name, size)| {
                format!(" and mesh.{}{name} = {size}", if name == "dcn_pipeline" { "" } else { "dcn_" })
            })
            .collect();
        let problem = format!("mesh.dcn_data = {data}{}, and {slices} slices are rented", named.concat());
        let divides = u128::from(slices).is_multiple_of(all);
        let least = [&axes.dcn_pipeline, &axes.dcn_fsdp, &axes.dcn_fsdp_transpose, &axes.dcn_context, &axes.dcn_expert];
        let other = least.into_iter().chain([&axes.dcn_tensor]).find_map(Option::as_ref);
        let at = if divides { axes.dcn_data.as_ref() } else { other };
        let at = at.map_or_else(|| written.span(), Spanned::span);
        let remedy = match (divides, pipeline > 1) {
            (true, _) => format!("write topology.slices, or mesh.dcn_data = {}", u128::from(slices) / all),
            (false, true) => format!(
                "write topology.slices, or a divisor of {slices} in mesh.dcn_pipeline: stages take whole slices"
            ),
            (false, false) => format!("write topology.slices, or axes over DCN whose product divides {slices}"),
        };
        return Err(reader.unknown(&Spanned::new(at, ()), problem, remedy));
    }
    let [fsdp, transpose, context, expert, tensor] = others;
    Ok((pipeline, [data, fsdp, transpose, context, expert, tensor]))
}

/// Stages within a slice, and its chips on each axis.
fn in_slice(
    reader: &mut Reader<'_>,
    written: &Spanned<written::Mesh>,
    topology: &Topology,
) -> Result<(u64, Sizes), ScenarioError> {
    let axes = written.get_ref();
    let ranks = topology.ranks() / topology.slices();
    let mut axis = |key: &Key, at: &Option<Spanned<i64>>| reader.count_or(key, at.as_ref(), 1);
    // On GPUs `dcn_data_parallelism` takes what is left, as -1 in base.yml has it: where shards are stated, nodes are replicas.
    let replicas_left = gpu::is_gpu(topology) && axes.fsdp.is_some() && axes.data.is_none();
    let data = if replicas_left { 1 } else { axis(&written::Mesh::data, &axes.data)? };
    let transpose = axis(&written::Mesh::fsdp_transpose, &axes.fsdp_transpose)?;
    let context = axis(&written::Mesh::context, &axes.context)?;
    let expert = axis(&written::Mesh::expert, &axes.expert)?;
    let tensor = axis(&written::Mesh::tensor, &axes.tensor)?;
    let pipeline = axis(&written::Mesh::pipeline, &axes.pipeline)?;
    // Seven axes of as many ranks as there may be: wider than any one of them.
    let others: u128 = [pipeline, data, transpose, context, expert, tensor].into_iter().map(u128::from).product();
    let fsdp = match &axes.fsdp {
        Some(at) => reader.count(&written::Mesh::fsdp, at)?,
        None => {
            let rest = u64::try_from(u128::from(ranks) / others).unwrap_or(1).max(1);
            reader.assume("mesh.fsdp", rest, rest)
        }
    };
    let data = match u128::from(ranks).checked_div(u128::from(fsdp) * others) {
        Some(rest) if replicas_left => {
            let rest = u64::try_from(rest).unwrap_or(1).max(1);
            reader.assume("mesh.data", rest, rest)
        }
        _ => data,
    };
    let all = u128::from(fsdp) * others * if replicas_left { u128::from(data) } else { 1 };
    if all != u128::from(ranks) {
        let (name, stages) =
            if pipeline > 1 { ("pipeline × ", format!("{pipeline} × ")) } else { ("", String::new()) };
        let problem = format!(
            "{name}data × fsdp × fsdp_transpose × context × expert × tensor = {stages}{data} × {fsdp} × {transpose} × {context} × \
             {expert} × {tensor} = {all}, and a slice of {} has {ranks} {}s",
            topology.name,
            topology.rank_is()
        );
        let remedy = format!("write axes whose product is the {}s of a slice", topology.rank_is());
        return Err(reader.plan(written, problem, remedy));
    }
    Ok((pipeline, [data, fsdp, transpose, context, expert, tensor]))
}

/// What lies on each axis, by the rules. Axes of which the same lies on each are one.
fn roles(
    reader: &Reader<'_>,
    (written, rules): (&Spanned<written::Mesh>, &Rules),
    (inside, across): (Sizes, Sizes),
) -> Result<Mesh, ScenarioError> {
    let (mut all, mut over) = ([1_u64; 6], [1_u64; 6]);
    let mut experts_only = false;
    let mut last = 0;
    for (axis, name) in AXES.iter().enumerate() {
        let size = inside[axis] * across[axis];
        if size == 1 {
            continue;
        }
        let role = rules.role(name).map_err(|problem| {
            let problem = format!("mesh.{name} = {size}: {problem}");
            reader.plan(&rules.at, problem, "see mesh.logical_axis_rules in the list of keys for what is simulated")
        })?;
        let place = role.place();
        if place < last {
            let problem = format!("by its rules mesh.{name} lies outside of what other axes inside of it do");
            let remedy = format!("swap the sizes of mesh.{name} and of the axis before it, and their rules");
            return Err(reader.plan(written, problem, remedy));
        }
        last = place;
        experts_only |= role == Role::ExpertsOnly;
        all[place] *= size;
        // Replicas over slices are counted apart.
        over[place] *= across[axis];
    }
    // Checked against the chips of a slice, and slices.
    let [data, fsdp, fsdp_transpose, context, expert, tensor] = all.map(|size| size as u32);
    let over = over.map(|size| size as u32);
    Ok(Mesh {
        dcn_data: over[0],
        data: data / over[0],
        fsdp,
        fsdp_transpose,
        context,
        expert,
        tensor,
        across: Across { fsdp: over[1], fsdp_transpose: over[2], context: over[3], expert: over[4], tensor: over[5] },
        experts_only,
        ..Mesh::ONE
    })
}

/// JAX's `create_device_mesh` lays no mesh that would have to share out a physical axis, unless told to (`jax/_src/mesh_utils.py`). Others
/// order devices themselves.
fn splits(
    reader: &mut Reader<'_>,
    written: &Spanned<written::Mesh>,
    (mesh, topology): (Mesh, &Topology),
) -> Result<(), ScenarioError> {
    let allowed = &written.get_ref().allow_split_physical_axes;
    let laid = topology.grid().and_then(|grid| Some((grid, assign(grid, &mesh.laid())?)));
    // Small slices are one ring, which is cut anywhere.
    let split = |laid: &Assignment| laid.split && laid.axes.len() > 1;
    let Some((grid, _)) = laid.filter(|(_, laid)| split(laid)) else { return Ok(()) };
    let sizes = |all: Vec<u32>| all.iter().map(u32::to_string).collect::<Vec<_>>().join(" x ");
    let mesh = sizes(mesh.laid().into_iter().filter(|&size| size > 1).collect());
    let all = grid.axes.iter().map(|axis| axis.size).chain([grid.devices]);
    let slice = sizes(all.filter(|&size| size > 1).collect());
    let problem = format!("JAX does not lay axes of {mesh} on a slice of {slice}, whose axes they would share out");
    match allowed {
        Some(at) if !*at.get_ref() => {
            Err(reader.plan(at, problem, "write allow_split_physical_axes = true, as in MaxText's configuration"))
        }
        Some(_) => Ok(()),
        None => {
            reader.note(format!("{problem}, unless allow_split_physical_axes is true: it is taken to be."));
            Ok(())
        }
    }
}

/// Specs must divide what they shard.
pub(super) fn divides(
    reader: &Reader<'_>,
    at: &Spanned<written::Mesh>,
    (model, mesh): (&ModelConfig, Mesh),
) -> Result<(), ScenarioError> {
    let tensor = u64::from(mesh.tensor);
    let context = u64::from(mesh.context);
    if !(model.heads() / tensor).is_multiple_of(context) {
        let problem = format!("mesh.context = {context} does not divide a chip's {} heads", model.heads() / tensor);
        return Err(reader.plan(at, problem, "write a divisor: work is shared in their number"));
    }
    let parts = [
        ("query heads", model.heads()),
        ("key-value heads", model.kv_heads()),
        ("feed-forward width", model.feed_forward_width()),
        ("words", model.vocab),
    ];
    if let Some((what, size)) = parts.into_iter().find(|(_, size)| !size.is_multiple_of(tensor)) {
        let problem = format!("mesh.tensor = {tensor} does not divide the {size} {what} of {}", model.name);
        return Err(reader.plan(at, problem, "write a divisor, or shard over mesh.fsdp"));
    }
    let shards = u64::from(mesh.shards());
    if !model.width.is_multiple_of(shards) {
        let problem = format!("{shards} chips do not divide the width {} of {}", model.width, model.name);
        return Err(reader.plan(at, problem, "shard over fewer chips, and write mesh.data for the rest"));
    }
    Ok(())
}
