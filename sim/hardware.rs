//! The machine a run is placed on: the chip, the node around it, and the links between chips, innermost first.
//!
//! A topology is *named and sized*: a file under `topologies/` describes one family of machines, and a scenario says how
//! much of it is rented, in nodes (`nodes = 4`) or as a slice of a torus (`slice = "4x4"`). A rank is a chip, or a
//! device where JAX shows a chip as several. Global rank `r` sits in node `r / ranks_per_node`; every question about where a group of
//! ranks lies follows from that.
//!
//! Everything here is what the vendor or a device query says the machine *is*. What it achieves, and at which clock, is
//! in the cost profile that the topology names. To add a machine: a TOML file, and a line in `hardware/shipped.rs`.

mod base;
mod change;
pub mod describe;
mod devices;
pub mod error;
mod on_nodes;
mod picture;
pub mod place;
pub mod price;
pub mod registry;
mod shipped;
mod topology;
pub mod torus;
mod understood;
pub mod uplink;
mod written;

pub use error::HardwareError;
pub use on_nodes::OnNodes;
pub use picture::Drawn;
pub use place::Place;
pub use registry::registry;
pub use topology::{Axis, Chip, Fact, Level, LevelKind, Node, Peak, Reach, Size, Topology, Vendor};
pub use torus::{Line, OnTorus};
pub use uplink::{Crossing, Hops, OUTER, Uplink};

/// The JSON Schema of a topology, `docs/schema/topology.json`.
pub const SCHEMA: &str = include_str!("../docs/schema/topology.json");

impl Topology {
    /// Reads a shipped topology by name, or one's own by the path of its `.toml`, and sizes it.
    pub fn load(name_or_path: &str, size: &Size) -> Result<Topology, HardwareError> {
        registry::load(name_or_path, size)
    }

    /// Reads a topology from the text of a file, which errors call `file`.
    pub fn parse(file: &str, text: &str, size: &Size) -> Result<Topology, HardwareError> {
        understood::read(file, text, size)
    }

    /// The shipped machine's own name, where it is asked for by this or by another of its names.
    pub fn name_of(name: &str) -> Option<&'static str> {
        shipped::shipped_as(name).map(|shipped| shipped.name)
    }

    /// The shipped machine of that name, at its smallest.
    pub fn shipped(name: &str) -> Option<Topology> {
        registry::shipped(name)
    }
}

#[cfg(test)]
mod tests;
