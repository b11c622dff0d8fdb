//! A row that has its run's own arguments: they go the way of a user's own file, through the importer of its codebase.

use serde_json::{Map, Value};

use super::Reason;
use super::keys::Gathered;
use super::stated::{described, machine, slices};
use crate::import::{self, Machine, Request, Tables, Why};
use crate::receipt::row::Row;
use crate::receipt::table::Table;

/// A row's arguments and variables of its environment.
pub(super) struct Own<'r> {
    read: Tables,
    arguments: &'r Map<String, Value>,
    variables: Option<&'r Map<String, Value>>,
}

/// Those of a row of a codebase that has an importer for them.
pub(super) fn arguments<'r>(table: &Table, row: &'r Value) -> Option<Own<'r>> {
    let of = |field: &str| row.pointer(field).and_then(Value::as_object);
    let read = import::find(table.arguments.as_deref()?).ok()?.tables?;
    Some(Own { read, arguments: of("/switches/full_model_args")?, variables: of("/switches/env_vars") })
}

impl Own<'_> {
    /// Writes the scenario's keys, on the row's machine.
    pub(super) fn read(&self, row: &Row, keys: &mut Gathered) -> Result<(), Reason> {
        let count = described(row, keys)?;
        match row.vendor() {
            "google" => {
                slices(row, count, keys)?;
            }
            _ => machine(row, count, keys)?,
        }
        let word = |key: &str| keys.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let number = |key: &str| keys.get(key).and_then(toml::Value::as_integer).and_then(|n| u32::try_from(n).ok());
        let slice = word("topology.slice");
        let machine = Machine {
            on: word("topology.name"),
            chips: slice.is_none().then(|| u32::try_from(count).ok()).flatten(),
            slices: number("topology.slices"),
            slice,
            ..Machine::default()
        };
        let file = row.source.get("path").and_then(Value::as_str).unwrap_or("the row");
        let request = Request { file, machine, ..Request::default() };
        let none = Map::new();
        let imported = (self.read)(&request, self.arguments, self.variables.unwrap_or(&none));
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
        keys.left_out(imported.left_out());
        Ok(())
    }
}

/// What an error says, without the place: an argument of a row has no line.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("the command line: ").unwrap_or(line).to_owned()
}
