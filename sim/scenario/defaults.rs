//! What a file left open, as the keys and values it could have had.

use toml::{Table, Value};

use super::understood::Scenario;

impl Scenario {
    /// The keys that the file left open, with the value taken for each. Writing them into the file changes nothing.
    ///
    /// An assumption is a line of the file, then perhaps a remark in brackets; notes are no such lines.
    pub fn defaults(&self) -> Vec<(String, Value)> {
        self.assumptions.iter().flat_map(|line| keys(line)).collect()
    }
}

fn keys(line: &str) -> Vec<(String, Value)> {
    let written = line.split(" (").next().unwrap_or_default();
    let table: Table = written.parse().unwrap_or_default();
    flat(&table)
}

/// The keys of a scenario file with their tables' names before them: `batch.micro`. A value that is a table of its own
/// (`wrap.every = 2`) stays whole.
pub fn flat(file: &Table) -> Vec<(String, Value)> {
    let mut list = vec![];
    for (name, value) in file {
        match value {
            Value::Table(table) => {
                list.extend(table.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())));
            }
            value => list.push((name.clone(), value.clone())),
        }
    }
    list
}
