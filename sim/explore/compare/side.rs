//! One side of a comparison: a scenario as keys and values, with what it leaves open.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use crate::scenario::{Draft, Scenario, ScenarioError, flat};

/// Says what a run is, and decides nothing.
const DESCRIPTION: &str = "description";

/// Keys with their values, `table.key`.
pub(super) type Keys = BTreeMap<String, Value>;

/// A scenario to compare. Its text may be a file's, or written by a program from a measured run.
#[derive(Clone, Debug)]
pub struct Side {
    /// What reports call it.
    pub name: String,
    /// What it says it is.
    pub description: String,
    /// What the text says.
    pub(super) written: Keys,
    /// What it leaves open, with the values taken.
    pub(super) open: Keys,
}

impl Side {
    /// Reads a side; `file` names it in errors, and paths in it are relative to that.
    pub fn read(name: &str, file: &str, text: &str) -> Result<Side, ScenarioError> {
        Ok(Side { name: name.to_owned(), ..Side::of(&Scenario::proofread(file, text)?) })
    }

    /// The side that a scenario is. Reports call it by its file.
    pub fn of(scenario: &Scenario) -> Side {
        let mut written: Keys = flat(scenario.draft.located().table()).into_iter().collect();
        written.remove(DESCRIPTION);
        let open = scenario.defaults().into_iter().collect();
        Side { name: scenario.file.clone(), description: scenario.description.clone(), written, open }
    }

    /// The keys that decide: those that either side writes, with this side's values for them, defaults filled in.
    pub(super) fn keys(&self, other: &Side) -> Keys {
        let both: BTreeSet<&String> = self.written.keys().chain(other.written.keys()).collect();
        let value = |key: &String| self.written.get(key).or(self.open.get(key)).cloned();
        both.into_iter().filter_map(|key| Some((key.clone(), value(key)?))).collect()
    }
}

/// The scenario that keys make.
pub(super) fn draft(keys: &Keys) -> Draft {
    // The mesh is a table even where both of its axes are left open.
    let mesh = Table::from_iter([("mesh".to_owned(), Value::Table(Table::new()))]);
    // No folder: paths have been found already.
    let mut draft = Draft::new("comparison.toml", mesh);
    for (key, value) in keys {
        draft.set(key, value.clone());
    }
    draft
}
