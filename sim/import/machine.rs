//! The machine, which configurations do not name and the command line does.

use super::error::ImportError;
use super::imported::Imported;
use super::importer::Request;
use super::why::Why;
use crate::hardware::registry::registry;
use crate::hardware::{Size, Topology};
use crate::near::did_you_mean;

/// What kind of machine a framework needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nodes of GPUs.
    Gpus,
    /// Slices of TPUs.
    Slices,
}

/// Writes `[topology]`, or says what is missing.
pub fn put(out: &mut Imported, request: &Request<'_>, framework: &'static str, kind: Kind) -> Result<(), ImportError> {
    let machine = &request.machine;
    let example = match kind {
        Kind::Gpus => "--on h100-sxm-80gb --nodes 8",
        Kind::Slices => "--on tpu-v6e --slice 4x4",
    };
    let fails = |problem: String| ImportError::Machine {
        problem,
        framework,
        file: request.file.to_owned(),
        example: example.to_owned(),
    };
    let Some(on) = &machine.on else {
        let problem = format!("{} does not say on which machine it runs: name it with --on", request.file);
        return Err(fails(problem));
    };
    let shipped = registry();
    let is_file = on.contains(['/', '\\']) || on.ends_with(".toml");
    if !is_file && !shipped.iter().any(|listed| listed.name == on) {
        let near = did_you_mean(on, shipped.iter().map(|listed| listed.name));
        return Err(fails(format!("there is no machine {on:?}{near}: windtunnel topology list shows all")));
    }
    let flag = |name: &str| Why::Follows(name.to_owned());
    out.put("topology.name", on.as_str(), flag("--on"));
    match (kind, machine.nodes, machine.chips, &machine.slice) {
        (Kind::Gpus, Some(nodes), None, None) => out.put("topology.nodes", i64::from(nodes), flag("--nodes")),
        (Kind::Gpus, None, Some(chips), None) => out.put("topology.chips", i64::from(chips), flag("--chips")),
        (Kind::Gpus, Some(nodes), Some(chips), None) => {
            out.put("topology.nodes", i64::from(nodes), flag("--nodes"));
            out.put("topology.chips", i64::from(chips), flag("--chips"));
        }
        (Kind::Slices, None, None, Some(slice)) => {
            out.put("topology.slice", slice.as_str(), flag("--slice"));
            if let Some(slices) = machine.slices {
                out.put("topology.slices", i64::from(slices), flag("--slices"));
            }
        }
        (Kind::Gpus, None, None, None) => return Err(fails(format!("--on {on} says not how many: write --nodes too"))),
        (Kind::Gpus, ..) => {
            let parts = "write --nodes for whole nodes, --chips for some chips of one, or both for some of each";
            return Err(fails(parts.to_owned()));
        }
        (Kind::Slices, ..) => {
            return Err(fails(
                "a TPU is rented as slices: write --slice, and --slices where there are several".to_owned(),
            ));
        }
    }
    Ok(())
}

/// How many GPUs the machine of the command line has; none where it is no machine.
pub fn ranks(request: &Request<'_>) -> Option<i64> {
    let machine = &request.machine;
    if let Some(chips) = machine.chips {
        return Some(i64::from(chips) * machine.nodes.map_or(1, i64::from));
    }
    let topology = Topology::load(machine.on.as_deref()?, &Size::Nodes(machine.nodes?)).ok()?;
    Some(i64::from(topology.chips()))
}
