//! What is asked about a collective, and what is answered: where its ranks lie, how long it takes, and how busy it keeps
//! the links.

use super::basis::Basis;
pub use crate::hardware::OnNodes;
use crate::hardware::{OUTER, OnTorus};
use crate::units::Time;

/// Where the ranks of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placed {
    /// On nodes, each a switch.
    Nodes(OnNodes),
    /// On slices of a torus.
    Torus(OnTorus),
}

impl From<OnNodes> for Placed {
    fn from(spread: OnNodes) -> Placed {
        Placed::Nodes(spread)
    }
}

impl From<OnTorus> for Placed {
    fn from(torus: OnTorus) -> Placed {
        Placed::Torus(torus)
    }
}

/// Time of a collective, and how busy it keeps the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommCost {
    /// How long it takes, alone on the machine.
    pub time: Time,
    /// Half-width of an 80 % interval, relative to the time.
    pub spread: f64,
    /// What the figure rests on.
    pub basis: Basis,
    /// Share of the peak bandwidth of a GPU's link inside the node, one direction, 0 to 1.
    pub inside: f64,
    /// Share of the line rate of a GPU's NICs, one direction, 0 to 1.
    pub across: f64,
    /// Share of one uplink into each level beyond, one direction, that one copy of the group uses, 0 to 1.
    pub outer: [f64; OUTER],
}
