//! A row that has its run's own arguments: they go the way of a user's own file, through the importer of its codebase.

use serde_json::{Map, Value};

use super::keys::Gathered;
use super::stated::{described, machine};
use super::{Assumption, Reason};
use crate::import::{self, Imported, Machine, Request, Why};
use crate::receipt::row::Row;
use crate::receipt::table::Table;

/// A row's arguments and variables of its environment.
pub(super) struct Own<'r> {
    arguments: &'r Map<String, Value>,
    variables: Option<&'r Map<String, Value>>,
}

/// Those of a row of a codebase that has an importer for them.
pub(super) fn arguments<'r>(table: &Table, row: &'r Value) -> Option<Own<'r>> {
    let of = |field: &str| row.pointer(field).and_then(Value::as_object);
    let arguments = of("/switches/full_model_args").filter(|_| table.arguments.as_deref() == Some("megatron"))?;
    Some(Own { arguments, variables: of("/switches/env_vars") })
}

impl Own<'_> {
    /// Writes the scenario's keys, on the row's machine, and returns what no key shows: arguments that are not simulated, or that
    /// nobody knows.
    pub(super) fn read(&self, row: &Row, keys: &mut Gathered) -> Result<Vec<Assumption>, Reason> {
        let count = described(row, keys)?;
        machine(row, count, keys)?;
        let name = keys.get("topology.name").and_then(toml::Value::as_str).map(str::to_owned);
        let file = row.source.get("path").and_then(Value::as_str).unwrap_or("the row");
        let chips = u32::try_from(count).ok();
        let request =
            Request { file, machine: Machine { on: name, chips, ..Machine::default() }, ..Request::default() };
        let none = Map::new();
        let imported = import::megatron_arguments(&request, self.arguments, self.variables.unwrap_or(&none));
        let imported = imported.map_err(|error| Reason::Uncovered(first_line(&error.to_string())))?;
        for entry in &imported.entries {
            if entry.key.starts_with("topology.") || entry.key == "description" {
                continue;
            }
            let source = match &entry.why {
                Why::Stated { .. } => None,
                other => Some(other.to_string()),
            };
            keys.put(&entry.key, entry.value.clone(), source);
        }
        Ok(unsaid(&imported))
    }
}

/// What an importer says of arguments that no key of the scenario shows.
fn unsaid(imported: &Imported) -> Vec<Assumption> {
    let without = imported.unmodelled.iter().map(|left| Assumption {
        key: format!("switches.{}", left.key),
        value: left.value.as_str().into(),
        source: format!("not simulated: {}", left.changes),
    });
    let unknown = imported.unknown.iter().map(|key| Assumption {
        key: format!("switches.{key}"),
        value: "".into(),
        source: "not an argument of the release that is known: taken as without effect".to_owned(),
    });
    without.chain(unknown).collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
