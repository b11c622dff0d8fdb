//! A change that was tried: what the plan takes with it.

use super::change::Remedy;
use crate::hardware::Topology;
use crate::scenario::as_many::MICRO_BATCHES;
use crate::scenario::predict::{Need, need};
use crate::scenario::{Change, Scenario};
use crate::units::Bytes;

/// A change, and what the plan takes with it.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub change: Change,
    pub need: Need,
}

impl Tried {
    /// The plan with a change, read and written out as if it stood there; none where the scenario's own checks refuse it.
    pub(super) fn of(scenario: &Scenario, change: Change) -> Option<Tried> {
        let read = read(scenario, &change)?;
        let changed = scenario.with(read.job, read.expandable_segments);
        let topology = Topology { chip: scenario.topology.chip.clone(), ..read.topology };
        let changed = Scenario { topology, ..changed };
        Some(Tried { change, need: need(&changed)? })
    }

    pub(super) fn remedy(&self) -> Option<Remedy> {
        self.need.total.map(|total| self.with_total(total))
    }

    /// The change, with what the device would then have to hold.
    pub(super) fn with_total(&self, device_total: Bytes) -> Remedy {
        Remedy { change: self.change.to_string(), device_total }
    }
}

/// The scenario with a change, if its own checks and the simulation take it.
pub(super) fn read(scenario: &Scenario, change: &Change) -> Option<Scenario> {
    scenario.draft.changed(change).tried(None).ok().filter(|read| read.job.refuses().is_none())
}

/// Several changes as one; none where two of them want different things of a key. Each that leaves a micro-batch fewer sequences does so on top
/// of the others.
pub(crate) fn combined<'c>(scenario: &Scenario, changes: impl IntoIterator<Item = &'c Change>) -> Option<Change> {
    let own = i64::from(scenario.job.micro_batches());
    let mut all: Vec<(&str, Option<toml::Value>)> = vec![];
    for (key, value) in changes.into_iter().flat_map(Change::keys) {
        let known = all.iter_mut().find(|(known, _)| *known == key);
        match (known, value) {
            (None, value) => all.push((key, value.cloned())),
            (Some((_, Some(toml::Value::Integer(before)))), Some(toml::Value::Integer(more)))
                if key == MICRO_BATCHES =>
            {
                *before = *before * more / own;
            }
            (Some((_, before)), value) if before.as_ref() == value => {}
            _ => return None,
        }
    }
    let set = |(key, value): (&str, Option<toml::Value>)| match value {
        Some(value) => Change::set(key, value),
        None => Change::remove(key),
    };
    all.into_iter().map(set).reduce(Change::and)
}
