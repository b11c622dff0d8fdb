//! The topologies that ship with the program, one line each, and the search for one by name or path.

use std::sync::{Mutex, PoisonError};

use super::shipped::{SHIPPED, Shipped, find, shipped_as};
use super::{HardwareError, Size, Topology, understood};

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
