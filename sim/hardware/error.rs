//! Why a topology could not be loaded: for the user, with both numbers and the remedy.

use super::Place;

/// A topology that could not be found, read or sized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    /// Neither a shipped name nor a path.
    #[error("no topology is named {name:?}{}: name one of {known}, or give the path of a .toml", did_you_mean(.closest))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The shipped name nearest to it, if any is near.
        closest: Option<&'static str>,
        /// All shipped names.
        known: String,
    },
    /// The file could not be read.
    #[error("cannot read the topology file {path}: {reason}")]
    Unreadable {
        /// The path asked for.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The file says something that cannot be understood, at a known place.
    #[error("{problem}\n{place}")]
    Written {
        /// What is wrong.
        problem: String,
        /// Where.
        place: Place,
    },
    /// Zero nodes.
    #[error("nodes = 0 on {name}, which rents nothing: write nodes = 1 or more")]
    NoNodes {
        /// The topology.
        name: String,
    },
    /// More chips than can be counted, or than the fabric joins.
    #[error(
        "{nodes} nodes of {chips_per_node} chips are more than the {limit} chips that {name} can join: rent fewer nodes"
    )]
    TooManyNodes {
        /// The topology.
        name: String,
        /// Nodes asked for.
        nodes: u32,
        /// Chips in each.
        chips_per_node: u32,
        /// The most chips there can be.
        limit: u32,
    },
    /// Sized in nodes where slices are sold.
    #[error(
        "{name} is sold in slices, not in nodes: write slice = {example:?} in place of nodes = {nodes}; its slices are {known}"
    )]
    SlicedNotCounted {
        /// The topology.
        name: String,
        /// Nodes asked for.
        nodes: u32,
        /// A slice there is.
        example: String,
        /// All slices.
        known: String,
    },
    /// Sized as a slice where nodes are sold.
    #[error(
        "{name} is sold in nodes of {chips_per_node} chips, not in slices: write nodes = 1 or more in place of slice = {slice:?}"
    )]
    CountedNotSliced {
        /// The topology.
        name: String,
        /// Chips in a node.
        chips_per_node: u32,
        /// The slice asked for.
        slice: String,
    },
    /// A slice that is not sold.
    #[error("{name} has no slice {slice:?}: its slices are {known}")]
    NoSuchSlice {
        /// The topology.
        name: String,
        /// The slice asked for.
        slice: String,
        /// All slices.
        known: String,
    },
}

fn did_you_mean(closest: &Option<&'static str>) -> String {
    closest.map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}
