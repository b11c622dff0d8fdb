//! Collectives: on switched nodes a measured curve inside a node and a fitted ring or tree across nodes; on the slices of
//! a torus what its links carry ([`super::torus`]).
//!
//! Inside a node (up to 8 GPUs on a switch) the time is read from nccl-tests curves for 2, 4 and 8 ranks: between sizes as
//! [`Lines`] do, between rank counts in the logarithm. Across N nodes with g ranks each (n = N·g), with x = bytes·f the bytes that
//! pass each rank (f = (n−1)/n; all-reduce 2(n−1)/n), NCCL picks the fastest of three protocols:
//!
//! ```text
//! floor      = per_rank·n + per_node·N            ring (all-gather, reduce-scatter, all-to-all)
//!            = first + per_doubling·log2(N)       tree (all-reduce)
//! low        = floor + x/(low_share·B)            LL
//! middle     = middle_floor·floor + x/(middle_share·B)   LL128
//! simple     = simple_floor·floor + x/B           Simple
//! time       = min of the three
//! B (ring)   = min(g·rail, inside·node peak)      each of the g rails carries a share of the ring
//! B (reduce) = min(g·rail·f/(2(N−1)/N), node slope)  N = 2 and switches that reduce (NVLS); otherwise the ring's
//! B (a2a)    = min(rail·f·n/(n−g), node peak)     a rank's own rail carries all that leaves the node
//! ```
//!
//! Shared uplinks beyond the cards lower B, and other latencies than those of the measured fabric move the time ([`super::route`]).
//! rail = what one GPU's NICs really carry = their line rate × efficiency. Inside a node the time is bytes over the
//! measured curve, and across nodes never less than what the part inside the node alone would take.

use serde::Deserialize;

pub use super::comm::{CommCost, OnNodes, Placed};
pub use super::protocols::Protocols;

use super::basis::{Basis, Evidence};
use super::lines::Lines;
use super::route::{Measured, Route, later};
use super::sound;
use super::torus::{self, Torus};
use crate::hardware::{OUTER, OnTorus};
use crate::program::Collective;
use crate::units::{Bandwidth, Bytes, Time};

/// How far a network's line rate may be from the measured one's and still count as the same, relative.
const SAME_RAIL: f64 = 0.05;

/// The section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    /// Peak of a GPU's link inside the node, or of all links of a TPU, one direction.
    link: Bandwidth,
    /// Latency, in the topology of the machine that was measured, between chips of a node or neighbours of a torus; unset: as in
    /// the shipped topologies.
    inner_latency: Option<Time>,
    /// The same between nodes, or slices.
    network_latency: Option<Time>,
    node: Option<WrittenNode>,
    across: Option<Across>,
    torus: Option<torus::Written>,
}

impl Written {
    /// Whether they are of a torus.
    pub(super) fn of_a_torus(&self) -> bool {
        self.torus.is_some()
    }
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    evidence: Evidence,
    /// Sizes common to all curves.
    bytes: Vec<u64>,
    all_gather: Vec<WrittenCurve>,
    reduce_scatter: Vec<WrittenCurve>,
    all_reduce: Vec<WrittenCurve>,
    all_to_all: Vec<WrittenCurve>,
    /// One pair of GPUs: latency and bandwidth.
    pair: Pair,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenCurve {
    ranks: u32,
    us: Vec<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Pair {
    latency: Time,
    bandwidth: Bandwidth,
    evidence: Evidence,
}

/// Across nodes.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Across {
    /// Line rate of the NICs that one GPU owns, where the topology says nothing else.
    rail: Bandwidth,
    /// Share of the line rate that a ring reaches.
    efficiency: f64,
    /// Share of the node's own peak that a ring through it keeps.
    inside: f64,
    ring: Protocols,
    tree: Protocols,
    all_to_all: Protocols,
}

/// Collectives of one chip and its fabric.
#[derive(Clone, Debug)]
pub struct Collectives {
    /// Peak of a GPU's link inside the node, or of all links of a TPU, one direction.
    pub link: Bandwidth,
    fabric: Fabric,
}

#[derive(Clone, Debug)]
enum Fabric {
    Switched(Box<Switched>),
    Torus(Torus),
}

/// Nodes on a switch, and a network between them.
#[derive(Clone, Debug)]
pub(super) struct Switched {
    link: Bandwidth,
    /// That bandwidth over the one at which times were measured.
    carried: f64,
    evidence: Evidence,
    /// By collective (all-gather, reduce-scatter, all-reduce, all-to-all), curves by rank count.
    node: [Vec<(u32, Lines)>; 4],
    largest: f64,
    pair: Pair,
    across: Across,
    /// Latencies of the fabric that was measured.
    measured: Measured,
}

fn table(kind: Collective) -> usize {
    match kind {
        Collective::AllGather | Collective::Broadcast | Collective::SendRecv => 0,
        Collective::ReduceScatter => 1,
        Collective::AllReduce => 2,
        Collective::AllToAll | Collective::Rows(_) => 3,
    }
}

/// Bytes that pass each rank, as a share of the buffer.
fn factor(kind: Collective, ranks: f64) -> f64 {
    match kind {
        Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Collective::SendRecv | Collective::Broadcast => 1.0,
        _ => (ranks - 1.0) / ranks,
    }
}

impl Collectives {
    pub(super) fn new(w: Written) -> Result<Collectives, String> {
        let link = w.link;
        let measured = |shipped: Measured| Measured {
            inner: w.inner_latency.unwrap_or(shipped.inner),
            network: w.network_latency.unwrap_or(shipped.network),
        };
        let fabric = match (w.node, w.across, w.torus) {
            (Some(node), Some(across), None) => {
                Fabric::Switched(Box::new(Switched::new(link, node, across, measured(Measured::ON_SWITCHES))?))
            }
            (None, None, Some(torus)) => Fabric::Torus(Torus::new(link, torus, measured(Measured::ON_A_TORUS))?),
            _ => {
                let why = "expected node and across (a switch in each node), or torus alone (a TPU's slices)";
                return Err(format!("collectives: {why}"));
            }
        };
        Ok(Collectives { link, fabric })
    }

    /// Whether they are of a torus.
    pub fn of_a_torus(&self) -> bool {
        matches!(self.fabric, Fabric::Torus(_))
    }

    /// Time of a collective over ranks that lie as `placed` says, by the route given, with `rail` the line rate of one chip's NICs;
    /// none: the profile's own. The plan check has seen to it that topology and profile are of one kind; if not, a torus' group
    /// counts as nodes of its slices, and nodes as slices of one line.
    pub(super) fn cost(
        &self,
        kind: Collective,
        bytes: Bytes,
        (placed, route): (Placed, &Route),
        rail: Option<Bandwidth>,
    ) -> CommCost {
        match (&self.fabric, placed) {
            (Fabric::Switched(switched), placed) => {
                let spread = match placed {
                    Placed::Nodes(spread) => spread,
                    Placed::Torus(torus) => OnNodes { ranks_per_node: torus.members(), nodes: torus.slices },
                };
                switched.cost(kind, bytes, (spread, route), rail.unwrap_or(switched.across.rail))
            }
            (Fabric::Torus(fabric), placed) => {
                let torus = match placed {
                    Placed::Torus(torus) => torus,
                    Placed::Nodes(spread) => OnTorus::chain(spread.ranks_per_node, spread.nodes),
                };
                fabric.cost(kind, bytes, (torus, route), rail)
            }
        }
    }

    /// The same on links of another bandwidth \[B/s\]: a buffer takes as long as one that is smaller by as much took on the
    /// links that were measured, so latencies stay. Of a torus, as it is.
    pub(super) fn on_link(&mut self, link: Bandwidth) {
        if let Fabric::Switched(switched) = &mut self.fabric {
            switched.carried = link.0 / self.link.0;
            switched.link = link;
            self.link = link;
        }
    }

    /// The nodes on a switch, where the chips are joined so.
    pub(super) fn switched(&self) -> Option<&Switched> {
        match &self.fabric {
            Fabric::Switched(switched) => Some(switched),
            Fabric::Torus(_) => None,
        }
    }
}

impl Switched {
    /// Line rate of one GPU's NICs that the profile assumes.
    pub(super) fn default_rail(&self) -> Bandwidth {
        self.across.rail
    }

    fn new(link: Bandwidth, w: WrittenNode, across: Across, measured: Measured) -> Result<Switched, String> {
        let sizes = w.bytes;
        let understand = |name: &str, curves: Vec<WrittenCurve>| {
            if curves.is_empty() || curves.windows(2).any(|pair| pair[0].ranks >= pair[1].ranks) {
                return Err(format!("collectives.node.{name} needs curves in rising order of ranks"));
            }
            curves
                .into_iter()
                .map(|curve| {
                    if curve.us.len() != sizes.len() || curve.ranks < 2 {
                        return Err(format!(
                            "collectives.node.{name} has {} times for {} ranks but {} sizes: expected as many of both",
                            curve.us.len(),
                            curve.ranks,
                            sizes.len()
                        ));
                    }
                    let points: Vec<(f64, f64)> =
                        sizes.iter().zip(&curve.us).map(|(&bytes, &us)| (bytes as f64, us * 1e-6)).collect();
                    let bad = |why| format!("collectives.node.{name}: {why}");
                    for (bytes, seconds) in &points {
                        let shown =
                            || format!("{bytes} B over {} ranks in {} us", curve.ranks, sound::figure(seconds * 1e6));
                        sound::not_stuck(*seconds, bytes / link.0).map_err(|why| bad(shown() + &why))?;
                    }
                    Ok((curve.ranks, Lines::new(&points).map_err(bad)?))
                })
                .collect::<Result<Vec<_>, String>>()
        };
        let node = [
            understand("all_gather", w.all_gather)?,
            understand("reduce_scatter", w.reduce_scatter)?,
            understand("all_reduce", w.all_reduce)?,
            understand("all_to_all", w.all_to_all)?,
        ];
        let a = &across;
        let shares = [&a.ring, &a.tree, &a.all_to_all].map(|p| [p.low_share, p.middle_share]);
        if shares.iter().flatten().chain([&a.efficiency, &a.inside]).any(|s| !(*s > 0.0 && *s <= 2.0)) {
            return Err("collectives.across has a share outside 0 to 2".to_owned());
        }
        if !(a.rail.0 > 0.0 && link.0 > 0.0 && w.pair.bandwidth.0 > 0.0) {
            return Err("collectives: link, rail and pair bandwidths must be above zero".to_owned());
        }
        let largest = sizes.last().map_or(1.0, |&bytes| bytes as f64);
        Ok(Switched { link, carried: 1.0, evidence: w.evidence, node, largest, pair: w.pair, across, measured })
    }

    /// Time inside one node \[s\], and what it rests on.
    fn inside(&self, kind: Collective, bytes: f64, ranks: f64) -> (f64, Basis, f64) {
        let (seconds, basis, spread) = self.measured_inside(kind, bytes / self.carried, ranks);
        match self.carried == 1.0 {
            true => (seconds, basis, spread),
            false => (seconds, basis.and(Basis::Extrapolated), 2.0 * spread),
        }
    }

    /// The same on the links that were measured.
    fn measured_inside(&self, kind: Collective, bytes: f64, ranks: f64) -> (f64, Basis, f64) {
        if kind == Collective::SendRecv {
            let seconds = self.pair.latency.seconds() + bytes / self.pair.bandwidth.0;
            return (seconds, self.pair.evidence.basis, self.pair.evidence.spread());
        }
        let curves = &self.node[table(kind)];
        // A count of ranks between two curves is read between them. Beyond, the nearest curve carries the same bytes through each
        // rank, and what its smallest message takes grows with the ranks.
        let after = curves.partition_point(|&(at, _)| f64::from(at) <= ranks);
        let reach = |at: u32| bytes * factor(kind, ranks) / factor(kind, f64::from(at));
        let (seconds, known) = match (after.checked_sub(1), curves.get(after)) {
            (None, _) => (curves[0].1.seconds(reach(curves[0].0)), false),
            (Some(last), next) => {
                let (at, curve) = &curves[last];
                let low = curve.seconds(reach(*at));
                if f64::from(*at) == ranks {
                    (low, true)
                } else if let Some((next, upper)) = next {
                    let share = libm::log(ranks / f64::from(*at)) / libm::log(f64::from(*next) / f64::from(*at));
                    (low + (upper.seconds(reach(*next)) - low) * share, false)
                } else {
                    (low + curve.seconds(1.0) * (ranks / f64::from(*at) - 1.0), false)
                }
            }
        };
        let covered = curves[0].1.covers(bytes);
        let basis = if known && kind != Collective::Broadcast && (covered || bytes < self.largest) {
            self.evidence.basis.and(Basis::Interpolated)
        } else {
            self.evidence.basis.and(Basis::Extrapolated)
        };
        let spread = self.evidence.spread() * if basis == Basis::Extrapolated { 2.0 } else { 1.0 };
        (seconds, basis, spread)
    }

    /// Bus bandwidth of the largest transfer inside a node of `ranks` \[B/s\].
    fn node_peak(&self, kind: Collective, ranks: f64) -> f64 {
        if ranks < 2.0 {
            return f64::INFINITY;
        }
        self.largest * factor(kind, ranks) / self.inside(kind, self.largest, ranks).0
    }

    /// Time of a collective over ranks that lie as `spread` says, with `rail` the line rate of one GPU's NICs.
    fn cost(&self, kind: Collective, bytes: Bytes, (spread, route): (OnNodes, &Route), rail: Bandwidth) -> CommCost {
        let (g, nodes) = (f64::from(spread.ranks_per_node.max(1)), f64::from(spread.nodes.max(1)));
        let n = g * nodes;
        if bytes.0 == 0 || n < 2.0 {
            let time = if bytes.0 == 0 { Time::ZERO } else { Time::from_seconds(1e-9) };
            return CommCost {
                time,
                spread: 0.0,
                basis: Basis::Measured,
                inside: 0.0,
                across: 0.0,
                outer: [0.0; OUTER],
            };
        }
        let size = bytes.0 as f64;
        let x = size * factor(kind, n);
        let link = if self.reduces_in_switch(kind, g) { x / 2.0 } else { x };
        if nodes < 2.0 {
            let (seconds, basis, spread) = self.inside(kind, size, n);
            let (seconds, moved) = later(seconds, self.more(kind, (g, nodes), route), link / self.link.0);
            let (basis, spread) = if moved { (basis.and(Basis::Extrapolated), 2.0 * spread) } else { (basis, spread) };
            return self.finish(seconds, basis, spread, link, 0.0, rail);
        }
        let carried = rail.0.max(1.0) * self.across.efficiency;
        let (protocols, floor, own, through_rail) = self.across(kind, g, nodes, carried, x);
        // What leaves a node, in units of what passes a rank: a ring's edge, or the tree of two nodes.
        let passes = match kind {
            Collective::AllReduce if self.in_two_switches(kind, g, nodes) => through_rail * g / x,
            _ => 1.0,
        };
        let bandwidth = own.min(route.bandwidth(kind, passes, self.across.efficiency));
        let seconds = protocols.seconds(floor, x, bandwidth);
        let (seconds, moved) = later(seconds, self.more(kind, (g, nodes), route), x / bandwidth);
        // The share that stays in the node cannot be faster than the node alone.
        let inner = match kind {
            Collective::AllToAll if g >= 2.0 => self.inside(kind, size * g / n, g).0,
            _ => 0.0,
        };
        // The error is stated for transfers above 1 MB over the nodes that were measured; small ones are latency, which
        // differs more between sites.
        // So is another network than the one measured, or other links inside nodes: the line rate carries over, latencies may not.
        let elsewhere = (rail.0 / self.across.rail.0 - 1.0).abs() > SAME_RAIL || self.carried != 1.0;
        let beyond = spread.nodes > protocols.nodes || elsewhere || moved || bandwidth < own;
        let basis = protocols.evidence.basis.and(if beyond { Basis::Extrapolated } else { Basis::Interpolated });
        let widen = if beyond || x < 1e6 { 2.0 } else { 1.0 };
        let seconds = seconds.max(inner);
        let cost = self.finish(seconds, basis, widen * protocols.evidence.spread(), link, through_rail, rail);
        CommCost { outer: route.uses(kind, x * passes, seconds), ..cost }
    }

    /// A time of messages that are all under way together, moved by the route's latency ([`later`]).
    pub(super) fn later(&self, seconds: f64, route: &Route, bytes_alone: f64) -> (f64, bool) {
        later(seconds, route.once(&self.measured), bytes_alone)
    }

    /// How much longer latencies of the route make a collective than where it was measured \[s\]; negative if they are lower.
    fn more(&self, kind: Collective, (g, nodes): (f64, f64), route: &Route) -> f64 {
        match kind {
            Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast => {
                route.round_a_ring(&self.measured)
            }
            Collective::AllReduce if nodes < 2.0 && self.reduces_in_switch(kind, g) => 2.0 * route.once(&self.measured),
            Collective::AllReduce => route.up_and_down(&self.measured, g),
            Collective::AllToAll | Collective::Rows(_) | Collective::SendRecv => route.once(&self.measured),
        }
    }

    /// Whether the switch itself adds (NVLS): an all-reduce that beats the rings, whose link carries the buffer once and
    /// not twice.
    fn reduces_in_switch(&self, kind: Collective, ranks: f64) -> bool {
        kind == Collective::AllReduce
            && ranks >= 2.0
            && self.node_peak(kind, ranks) > 1.1 * self.node_peak(Collective::AllGather, ranks)
    }

    /// Whether an all-reduce goes through the switches of two nodes.
    fn in_two_switches(&self, kind: Collective, g: f64, nodes: f64) -> bool {
        nodes <= 2.0 && self.reduces_in_switch(kind, g)
    }

    /// Bus bandwidth inside a node of `ranks` of what is added to the largest transfers \[B/s\]: without the latency that is part of
    /// their time.
    fn node_slope(&self, kind: Collective, ranks: f64) -> f64 {
        let less = self.largest / 2.0;
        let [low, high] = [less, self.largest].map(|bytes| self.inside(kind, bytes, ranks).0);
        (self.largest - less) * factor(kind, ranks) / (high - low).max(f64::MIN_POSITIVE)
    }

    /// Protocols, floor \[s\], bus bandwidth \[B/s\] and bytes through one GPU's NICs.
    fn across(&self, kind: Collective, g: f64, nodes: f64, rail: f64, x: f64) -> (&Protocols, f64, f64, f64) {
        let n = g * nodes;
        let a = &self.across;
        let inside = a.inside * self.node_peak(kind, g);
        match kind {
            Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast => {
                (&a.ring, a.ring.ring_floor(n, nodes), (g * rail).min(inside), x / g)
            }
            Collective::AllReduce => {
                // Each rail carries 1/g of the buffer, twice, less the node's own share.
                let share = 2.0 * (nodes - 1.0) / nodes / g;
                // Between two nodes whose switches reduce, each rail carries its share of the tree once; else NCCL's ring carries the bulk.
                let ring = (g * rail).min(a.inside * self.node_peak(Collective::AllGather, g));
                let bus = match self.in_two_switches(kind, g, nodes) {
                    true => (rail * factor(kind, n) / share).min(self.node_slope(kind, g)),
                    false => ring,
                };
                (&a.tree, a.tree.tree_floor(nodes), bus, x / factor(kind, n) * share)
            }
            Collective::AllToAll | Collective::Rows(_) => {
                let leaving = (n - g) / (n - 1.0);
                (&a.all_to_all, a.all_to_all.ring_floor(n, nodes), (rail / leaving).min(inside), x * leaving)
            }
            Collective::SendRecv => (&a.ring, a.ring.ring_floor(2.0, 2.0), rail, x),
        }
    }

    pub(super) fn finish(
        &self,
        seconds: f64,
        basis: Basis,
        spread: f64,
        through_link: f64,
        through_rail: f64,
        rail: Bandwidth,
    ) -> CommCost {
        let seconds = seconds.max(1e-9);
        let busy = |bytes: f64, peak: Bandwidth| (bytes / (seconds * peak.0.max(1.0))).clamp(0.0, 1.0);
        CommCost {
            time: Time::from_seconds(seconds),
            spread,
            basis,
            inside: busy(through_link, self.link),
            across: busy(through_rail, rail),
            outer: [0.0; OUTER],
        }
    }
}
