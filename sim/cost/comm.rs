//! What is asked about a collective, and what is answered: where its ranks lie, how long it takes, and how busy it keeps
//! the links.

use super::basis::Basis;
use crate::hardware::OnTorus;
use crate::units::Time;

/// How the ranks of a group lie on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spread {
    /// Ranks of the group on each node.
    pub ranks_per_node: u32,
    /// Nodes the group spans.
    pub nodes: u32,
}

/// Where the ranks of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placed {
    /// On nodes, each a switch.
    Nodes(Spread),
    /// On slices of a torus.
    Torus(OnTorus),
}

impl From<Spread> for Placed {
    fn from(spread: Spread) -> Placed {
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
}
