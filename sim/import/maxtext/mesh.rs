//! Axes of MaxText's mesh on slices of TPUs.

use toml::Value;

use crate::hardware::{Size, Topology};
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::importer::Request;
use crate::import::settings::Settings;
use crate::import::why::{Found, Why};

/// Axes within a slice, outermost first as `mesh_axes` of base.yml has them.
const WITHIN: [(&str, &str); 7] = [
    ("mesh.data", "ici_data_parallelism"),
    ("mesh.pipeline", "ici_pipeline_parallelism"),
    ("mesh.fsdp", "ici_fsdp_parallelism"),
    ("mesh.fsdp_transpose", "ici_fsdp_transpose_parallelism"),
    ("mesh.context", "ici_context_parallelism"),
    ("mesh.tensor", "ici_tensor_parallelism"),
    ("mesh.expert", "ici_expert_parallelism"),
];

/// Axes between slices.
const BETWEEN: [(&str, &str); 7] = [
    ("mesh.dcn_data", "dcn_data_parallelism"),
    ("mesh.dcn_pipeline", "dcn_pipeline_parallelism"),
    ("mesh.dcn_fsdp", "dcn_fsdp_parallelism"),
    ("mesh.dcn_fsdp_transpose", "dcn_fsdp_transpose_parallelism"),
    ("mesh.dcn_context", "dcn_context_parallelism"),
    ("mesh.dcn_tensor", "dcn_tensor_parallelism"),
    ("mesh.dcn_expert", "dcn_expert_parallelism"),
];

/// An axis with its ranks, and whether it takes those that are left.
struct Axis {
    key: &'static str,
    size: i64,
    why: Why,
    rest: bool,
}

/// Writes `[mesh]`.
pub(super) fn mesh(out: &mut Imported, settings: &Settings<'_>, request: &Request<'_>) -> Result<(), ImportError> {
    let (chips, devices) = chips(request);
    let slices = i64::from(request.machine.slices.unwrap_or(1));
    let all = chips.saturating_mul(devices);
    let of = match devices {
        1 => format!("the chips of a slice of {chips} that are left"),
        _ => format!("the devices of a slice of {chips} chips, {devices} each, that are left"),
    };
    let within = axes(settings, &WITHIN, all, &of)?;
    let between = axes(settings, &BETWEEN, slices, &format!("the slices of {slices} that are left"))?;
    let alone = |axis: &Axis| axis.size == 1 && !axis.rest;
    for axis in within.into_iter().filter(|axis| !alone(axis)) {
        out.put(axis.key, axis.size, axis.why);
    }
    for axis in between.into_iter().filter(|axis| axis.size > 1) {
        out.put(axis.key, axis.size, axis.why);
    }
    let split = settings.flag("allow_split_physical_axes")?.filter(|found| found.value);
    out.put_found("mesh.allow_split_physical_axes", split);
    if let Some(found) = settings.value("logical_axis_rules") {
        let rules = rules(&found.value).ok_or_else(|| {
            let expected = "rows of a logical axis and the mesh axes that it lies on";
            settings.wrong("logical_axis_rules", expected, "[[\"embed\", [\"fsdp\"]]]")
        })?;
        out.put("mesh.logical_axis_rules", rules, found.why);
    }
    Ok(())
}

/// Axes with their sizes, of which one may take what the others leave of `all`.
fn axes(
    settings: &Settings<'_>,
    names: &[(&'static str, &str)],
    all: i64,
    left: &str,
) -> Result<Vec<Axis>, ImportError> {
    let mut axes: Vec<Axis> = vec![];
    for (key, source) in names {
        let Some(Found { value, why, .. }) = settings.integer(source)? else { continue };
        if value != -1 && value < 1 {
            return Err(settings.wrong(source, "-1, or a whole number of 1 or more", "1"));
        }
        if value == -1 && axes.iter().any(|axis| axis.rest) {
            return Err(settings.wrong(source, "a whole number of 1 or more, where another axis is -1", "1"));
        }
        axes.push(Axis { key, size: value.max(1), why, rest: value == -1 });
    }
    let known = axes.iter().fold(1i64, |all, axis| all.saturating_mul(axis.size));
    if let Some(axis) = axes.iter_mut().find(|axis| axis.rest) {
        axis.size = (all / known.max(1)).max(1);
        axis.why = axis.why.clone().so(left);
    }
    Ok(axes)
}

/// Chips of a slice of the machine, and as how many devices JAX sees each; one where there is no such slice, which is refused later.
fn chips(request: &Request<'_>) -> (i64, i64) {
    let machine = &request.machine;
    let size = machine.slice.as_ref().map_or(Size::Smallest, |slice| Size::Slice(slice.clone()));
    let topology = machine.on.as_deref().and_then(|on| Topology::load(on, &size).ok());
    topology.map_or((1, 1), |topology| (i64::from(topology.chips()), i64::from(topology.chip.devices)))
}

/// Rules as a scenario has them; none if they are of another shape.
fn rules(value: &serde_json::Value) -> Option<Value> {
    let names = |axes: &serde_json::Value| match axes {
        serde_json::Value::Array(all) => all.iter().map(|axis| Some(Value::from(axis.as_str()?))).collect(),
        one => Some(vec![Value::from(one.as_str()?)]),
    };
    let row = |row: &serde_json::Value| match row.as_array()?.as_slice() {
        [name, axes] => Some(Value::Array(vec![Value::from(name.as_str()?), Value::Array(names(axes)?)])),
        _ => None,
    };
    Some(Value::Array(value.as_array()?.iter().map(row).collect::<Option<_>>()?))
}
