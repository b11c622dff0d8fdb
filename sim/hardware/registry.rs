//! The topologies that ship with the program, one line each, and the search for one by name or path.

use std::fs;

use super::{HardwareError, Size, Topology};

/// A shipped topology.
struct Shipped {
    name: &'static str,
    aliases: &'static [&'static str],
    text: &'static str,
}

macro_rules! shipped {
    ($($name:literal $(also $alias:literal)*;)*) => {
        &[$(Shipped {
            name: $name,
            aliases: &[$($alias),*],
            text: include_str!(concat!("../../topologies/", $name, ".toml")),
        }),*]
    };
}

const SHIPPED: &[Shipped] = shipped! {
    "a100-sxm-80gb";
    "a100-sxm-40gb";
    "h100-sxm-80gb";
    "h100-hbm2e-96gb-500w";
    "h200-sxm-141gb" also "h200-sxm";
    "b200-sxm";
    "tpu-v6e";
    "tpu-v5e";
    "tpu-v4";
    "tpu-v5p";
    "tpu-v7x" also "tpu7x";
};

/// One entry of the list of shipped topologies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name to ask for.
    pub name: &'static str,
    /// Other names for the same.
    pub aliases: &'static [&'static str],
    /// One line.
    pub description: String,
}

/// The shipped topologies, in the order of the table.
pub fn registry() -> Vec<Listed> {
    let listed = |shipped: &Shipped| {
        let topology = Topology::parse(shipped.name, shipped.text, &Size::Smallest)
            .unwrap_or_else(|error| panic!("the shipped topology {} does not parse: {error}", shipped.name));
        Listed { name: shipped.name, aliases: shipped.aliases, description: topology.description }
    };
    SHIPPED.iter().map(listed).collect()
}

/// The shipped machine of a name, at its smallest.
pub(super) fn shipped(name: &str) -> Option<Topology> {
    let shipped = SHIPPED.iter().find(|shipped| shipped.name == name)?;
    Topology::parse(shipped.name, shipped.text, &Size::Smallest).ok()
}

/// What errors call the file, and its text.
pub(super) fn find(name_or_path: &str) -> Result<(String, String), HardwareError> {
    let asked = name_or_path.trim();
    let is_it = |shipped: &&Shipped| shipped.name == asked || shipped.aliases.contains(&asked);
    if let Some(shipped) = SHIPPED.iter().find(is_it) {
        return Ok((format!("topologies/{}.toml", shipped.name), shipped.text.to_owned()));
    }
    if !(asked.ends_with(".toml") || asked.contains(['/', '\\'])) {
        let known = SHIPPED.iter().map(|shipped| shipped.name).collect::<Vec<_>>().join(", ");
        return Err(HardwareError::Unknown { name: asked.to_owned(), closest: closest(asked), known });
    }
    match fs::read_to_string(asked) {
        Ok(text) => Ok((asked.to_owned(), text)),
        Err(error) => Err(HardwareError::Unreadable { path: asked.to_owned(), reason: error.to_string() }),
    }
}

/// The shipped name that `asked` begins or is contained in, else the one fewest edits away, if few enough.
fn closest(asked: &str) -> Option<&'static str> {
    let asked = asked.to_lowercase().replace(['_', ' '], "-");
    let within = |shipped: &&Shipped| asked.len() >= 3 && shipped.name.contains(&asked);
    if let Some(shipped) = SHIPPED.iter().find(within) {
        return Some(shipped.name);
    }
    let distance = |shipped: &Shipped| (edits(&asked, shipped.name), shipped.name);
    SHIPPED.iter().map(distance).min().filter(|&(edits, name)| edits <= name.len() / 2).map(|(_, name)| name)
}

/// Characters to insert, delete or replace to get from one word to the other (Levenshtein).
pub(crate) fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, from) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, &to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
