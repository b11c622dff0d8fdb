//! Readers of the formats that configurations are written in: each gives a flat list of keys with their lines.

pub mod json;
pub mod overrides;
pub mod shell;
pub mod toml_file;
pub mod yaml;

use crate::budget;
use crate::scenario::keys::TABLES;
use crate::tables;

/// The most keys of a configuration: no framework's has a hundredth of it.
pub const MOST: usize = 100_000;

/// The deepest nesting that is read.
pub const DEEPEST: usize = 32;

/// The value that a text of JSON is; none of other texts, and of one that holds too much.
pub fn json_value(text: &str) -> Option<serde_json::Value> {
    budget::json(text).ok().and_then(|()| serde_json::from_str(text).ok())
}

/// Whether a text is a scenario, or was meant to be one.
pub fn is_scenario(text: &str) -> bool {
    let Ok(table) = tables::Node::parse(text) else { return false };
    table.keys().any(|(key, ..)| key == "runtime" || key == "topology")
}

/// Whether a text is TOML with a table that scenarios have, or would be but for an error.
pub fn is_like_a_scenario(text: &str) -> bool {
    match tables::Node::parse(text) {
        Ok(node) => node.keys().any(|(key, ..)| TABLES.iter().any(|table| table.name == key)),
        Err(_) => text.lines().any(|line| line.starts_with("[topology") || line.starts_with("runtime")),
    }
}

/// Where the lines of a text end, so that the line of a byte is found without reading all that stands before it.
pub struct Lines(Vec<usize>);

impl Lines {
    /// Those of a text.
    pub fn of(text: &str) -> Lines {
        Lines(memchr::memchr_iter(b'\n', text.as_bytes()).collect())
    }

    /// The line of a byte, from 1.
    pub fn of_byte(&self, at: usize) -> usize {
        1 + self.0.partition_point(|&end| end < at)
    }
}
