//! What a file left open, as the keys and values it could have had.

use toml::{Table, Value};

use super::assumption::Assumption;
use super::understood::Scenario;

impl Scenario {
    /// The keys that the file left open, with the value taken for each. Writing them into the file changes nothing.
    pub fn defaults(&self) -> Vec<(String, Value)> {
        let taken = self.assumptions.iter().filter_map(Assumption::taken);
        let mut list: Vec<(String, Value)> = vec![];
        for (key, value) in taken.flat_map(|taken| flat(&nested(&taken.key, taken.value.value()))) {
            let known = list.iter_mut().find(|(known, _)| *known == key);
            match (known, value) {
                // Two keys of one table: `zero.aio.block_size` and its neighbour.
                (Some((_, Value::Table(known))), Value::Table(more)) => known.extend(more),
                (_, value) => list.push((key, value)),
            }
        }
        list
    }

    /// What the report lists as taken for what the file leaves out, line by line.
    pub fn assumption_lines(&self) -> Vec<String> {
        self.assumptions.iter().map(Assumption::to_string).collect()
    }
}

/// A file of one key, `zero.aio.block_size`: a table for each name before the last.
fn nested(key: &str, value: Value) -> Table {
    match key.split_once('.') {
        None => Table::from_iter([(key.to_owned(), value)]),
        Some((table, key)) => Table::from_iter([(table.to_owned(), Value::Table(nested(key, value)))]),
    }
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
