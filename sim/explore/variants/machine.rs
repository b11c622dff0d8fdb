//! Variants on other machines, with as many chips.

use super::error::VariantError;
use super::variant::{Variant, checked};
use crate::hardware::{Size, Topology, registry};
use crate::scenario::{Draft, Scenario, relative};

/// Every machine that is shipped.
pub(super) fn topologies() -> Vec<String> {
    registry().into_iter().map(|listed| listed.name.to_owned()).collect()
}

/// Another machine with as many chips: whole nodes of it, or part of one. Its own profile of costs, for a profile belongs
/// to one machine.
pub(super) fn topology(draft: &Draft, scenario: &Scenario, name: &str) -> Result<Option<Variant>, VariantError> {
    let mut draft = draft.clone();
    let machine = Topology::load(&relative(&scenario.file, name), &Size::Smallest).map_err(Box::new)?;
    draft.set("topology.name", name);
    if machine.name == scenario.topology.name {
        return Ok(Some(checked(name, draft, None)));
    }
    let mut notes = vec![];
    if draft.get("topology.profile").is_some() {
        draft.remove("topology.profile");
        notes.push("its own profile of costs".to_owned());
    }
    let (chips, per_node) = (scenario.topology.ranks(), machine.ranks_per_node());
    for size in ["nodes", "slice", "chips"] {
        draft.remove(&format!("topology.{size}"));
    }
    if chips.is_multiple_of(per_node) {
        let nodes = chips / per_node;
        draft.set("topology.nodes", i64::from(nodes));
        if nodes != scenario.topology.nodes {
            notes.push(format!("{nodes} nodes, for the same {chips} chips"));
        }
    } else if chips < per_node {
        draft.set("topology.chips", i64::from(chips));
        notes.push(format!("{chips} chips of a node of {per_node}"));
    } else {
        let reason = format!("{chips} chips are no whole number of its nodes of {per_node}");
        return Ok(Some(Variant { name: name.to_owned(), draft: Err(reason), note: None }));
    }
    Ok(Some(checked(name, draft, (!notes.is_empty()).then(|| notes.join("; ")))))
}
