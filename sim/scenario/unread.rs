//! Numbers of a topology file that change nothing: somebody who edits one should not think that the answer has moved by it.

use crate::cost::Profile;
use crate::hardware::{Fact, Topology};

/// Whether no prediction reads a number of a topology. Times come from the profile: latencies, caches, clocks and power are in what
/// was measured there.
fn nobody_reads(name: &str) -> bool {
    let chip = ["chip.l2", "chip.power", "chip.clock", "chip.host_bandwidth", "node.host_cores"];
    chip.contains(&name) || name.ends_with(".latency") || name.ends_with(".links") || name.ends_with(".wraps")
}

/// Numbers that are not the shipped machine's of the same profile, and that change nothing. Bandwidths are among them where they are
/// so near to those that the profile was measured at that they are taken for them.
pub(super) fn unread(topology: &Topology, profile: &Profile) -> Vec<String> {
    // A machine and the profile of what it measured have one name.
    let Some(shipped) = Topology::shipped(&topology.profile) else { return vec![] };
    let inner = topology.fabric.first().map_or(String::new(), |level| format!("fabric.{}.bandwidth", level.name));
    let link = topology.fabric.first().map_or(0.0, |level| level.bandwidth.0);
    let taken_for = |name: &str| match name {
        "chip.memory_bandwidth" => topology.chip.memory_bandwidth.0 != profile.machine.memory_bandwidth.0,
        name => name == inner && link != profile.collectives.link.0,
    };
    let as_shipped =
        |fact: &Fact| shipped.facts.iter().any(|known| known.name == fact.name && known.value == fact.value);
    let changed = topology.facts.iter().filter(|fact| !as_shipped(fact));
    changed.filter(|fact| nobody_reads(&fact.name) || taken_for(&fact.name)).map(|fact| fact.name.clone()).collect()
}
