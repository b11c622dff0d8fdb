//! NCCL's three protocols, of which it picks the fastest: their latencies and their shares of the bandwidth.

use serde::Deserialize;

use super::basis::Evidence;
use crate::units::Time;

/// The three protocols of one algorithm.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Protocols {
    /// What the section rests on.
    pub evidence: Evidence,
    /// Most nodes that were measured.
    pub nodes: u32,
    /// Latency of each rank in the ring, or of a tree's first two nodes.
    pub per_rank: Time,
    /// Latency of each node in the ring, or of each doubling of nodes.
    pub per_node: Time,
    /// Bandwidth of LL over that of Simple.
    pub low_share: f64,
    /// Floor of LL128 over that of LL.
    pub middle_floor: f64,
    /// Bandwidth of LL128 over that of Simple.
    pub middle_share: f64,
    /// Floor of Simple over that of LL.
    pub simple_floor: f64,
}

impl Protocols {
    /// Time of `x` bytes through each rank at bandwidth `b`, with the floor given \[s\].
    pub fn seconds(&self, floor: f64, x: f64, b: f64) -> f64 {
        let low = floor + x / (self.low_share * b);
        let middle = self.middle_floor * floor + x / (self.middle_share * b);
        let simple = self.simple_floor * floor + x / b;
        low.min(middle).min(simple)
    }

    /// Latency of a ring over all ranks \[s\].
    pub fn ring_floor(&self, ranks: f64, nodes: f64) -> f64 {
        self.per_rank.seconds() * ranks + self.per_node.seconds() * nodes
    }

    /// Latency of a tree over nodes \[s\].
    pub fn tree_floor(&self, nodes: f64) -> f64 {
        self.per_rank.seconds() + self.per_node.seconds() * libm::log2(nodes.max(1.0))
    }
}
