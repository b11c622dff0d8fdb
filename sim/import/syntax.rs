//! Readers of the formats that configurations are written in: each gives a flat list of keys with their lines.

pub mod json;
pub mod overrides;
pub mod shell;
pub mod toml_file;
pub mod yaml;

/// The most keys of a configuration: no framework's has a hundredth of it.
pub const MOST: usize = 100_000;

/// The deepest nesting that is read.
pub const DEEPEST: usize = 32;

/// Whether a text is a scenario, or was meant to be one.
pub fn is_scenario(text: &str) -> bool {
    let Ok(table) = text.parse::<toml::Table>() else { return false };
    table.contains_key("runtime") || table.contains_key("topology")
}

/// The line of a byte, from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
