//! The topologies that ship with the program, one line each, and the search for one by name or path.

use std::sync::{Mutex, PoisonError};

use super::{HardwareError, Size, Topology, understood};
use crate::near::nearest;

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

/// How many machines are kept.
const KEPT: usize = 64;

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
        let topology = understood::read(shipped.name, shipped.text, &Size::Smallest)
            .unwrap_or_else(|error| panic!("the shipped topology {} does not parse: {error}", shipped.name));
        Listed { name: shipped.name, aliases: shipped.aliases, description: topology.description }
    };
    SHIPPED.iter().map(listed).collect()
}

/// The shipped machine of a name, at its smallest.
pub(super) fn shipped(name: &str) -> Option<Topology> {
    let shipped = SHIPPED.iter().find(|shipped| shipped.name == name)?;
    understood::read(shipped.name, shipped.text, &Size::Smallest).ok()
}

/// A shipped topology by name, or one's own by path. Shipped ones are kept: a search asks for the same machine thousands of times.
pub(super) fn load(name_or_path: &str, size: &Size) -> Result<Topology, HardwareError> {
    static READ: Mutex<Vec<(String, Size, Topology)>> = Mutex::new(vec![]);
    let read = || READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., known)) = read().iter().find(|(name, of, _)| name == name_or_path && of == size) {
        return Ok(known.clone());
    }
    let (file, text) = find(name_or_path)?;
    let topology = understood::read(&file, &text, size)?;
    let mut known = read();
    if shipped_as(name_or_path).is_some() && known.len() < KEPT {
        known.push((name_or_path.to_owned(), size.clone(), topology.clone()));
    }
    Ok(topology)
}

/// The shipped topology that is asked for.
fn shipped_as(name_or_path: &str) -> Option<&'static Shipped> {
    let asked = name_or_path.trim();
    SHIPPED.iter().find(|shipped| shipped.name == asked || shipped.aliases.contains(&asked))
}

/// What errors call the file, and its text.
pub(super) fn find(name_or_path: &str) -> Result<(String, String), HardwareError> {
    let asked = name_or_path.trim();
    if let Some(shipped) = shipped_as(asked) {
        return Ok((format!("topologies/{}.toml", shipped.name), shipped.text.to_owned()));
    }
    if !(asked.ends_with(".toml") || asked.contains(['/', '\\'])) {
        let known = SHIPPED.iter().map(|shipped| shipped.name).collect::<Vec<_>>().join(", ");
        // A name is nearer than an alias of another.
        let names = SHIPPED.iter().map(|shipped| shipped.name);
        let closest = nearest(asked, names.chain(SHIPPED.iter().flat_map(|shipped| shipped.aliases.iter().copied())));
        return Err(HardwareError::Unknown { name: asked.to_owned(), closest, known });
    }
    match crate::files::text(asked.as_ref()) {
        Ok(text) => Ok((asked.to_owned(), text)),
        Err(error) => Err(HardwareError::Unreadable { path: asked.to_owned(), reason: error.to_string() }),
    }
}
