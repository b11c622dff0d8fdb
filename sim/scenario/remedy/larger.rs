//! The same plan on more nodes.

use super::change::Remedy;
use super::tried::{Tried, combined};
use crate::hardware::Vendor;
use crate::scenario::as_many::over;
use crate::scenario::{Change, Scenario};

/// Axes of the mesh that take in more ranks, where the file says how many they have.
const AXES: [&str; 3] = ["mesh.dp", "mesh.dp_shard", "mesh.fsdp"];

/// The fewest nodes that the plan fits on, in doublings, as it is or else with other changes.
pub(super) fn larger(scenario: &Scenario, with: Option<&Change>) -> Option<Remedy> {
    // A TPU's slices have names, and not every one is twice another.
    let counts = scenario.topology.chip.vendor == Vendor::Nvidia && scenario.draft.get("topology.nodes").is_some();
    let times = [2, 4, 8].into_iter().filter(|_| counts);
    times
        .flat_map(|times| alternatives(scenario, times, with))
        .filter_map(|change| Tried::of(scenario, change))
        .find_map(|tried| tried.remedy())
}

fn alternatives(scenario: &Scenario, times: i64, with: Option<&Change>) -> Vec<Change> {
    let mut change = Change::set("topology.nodes", i64::from(scenario.topology.nodes) * times);
    let size = |key: &str| scenario.draft.get(key).and_then(toml::Value::as_integer);
    for axis in AXES {
        if let Some(ranks) = size(axis) {
            change = change.and(Change::set(axis, ranks * times));
        }
    }
    let change = over(scenario, change, times);
    let both = with.and_then(|with| combined(scenario, [with, &change]));
    [Some(change), both].into_iter().flatten().collect()
}
