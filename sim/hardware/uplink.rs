//! Uplinks: the links by which an instance of one level of the fabric reaches the next, and what a group sends through them.
//!
//! Level 0 joins the chips of a node, level 1 is the network of their cards: each chip has its own share of both. Further out
//! links are shared. An instance of level `l − 1` joins `chips` chips and reaches level `l`, of bandwidth `w` a chip, by
//!
//! ```text
//! one uplink of  chips · w / oversubscription                  where level l − 1 is a switch that all its chips share
//! one uplink for each position in the node, each of that over the positions         where level l − 1 has rails
//! ```
//!
//! each way. With rails, chip `i` of a node reaches chip `i` of another by the switch of rail `i`; NCCL keeps to rails: rings leave
//! and enter a node by the same card, and all-to-all messages go through the chip of the receiver's rail first (PXN).
//!
//! A copy of a group has n members, m of them below an instance, and x bytes pass each rank. Through the instance's uplinks go, out
//! and in alike,
//!
//! ```text
//! ring, message    x                        NCCL visits nodes in rank order, so a ring leaves an instance once
//! all-to-all       x · m(n − m)/(n − 1)     all that members below send to members elsewhere
//! ```
//!
//! All copies of a group run at once: the busiest uplink carries as many times that as copies cross it.

use super::on_nodes::worst;
use super::{LevelKind, Reach, Topology};
use crate::units::{Bandwidth, Time};

/// Levels beyond the network of cards that a fabric may have.
pub const OUTER: usize = 4;

/// The uplinks from one level into the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uplink {
    /// Index in the fabric of the level that they lead into, 2 or more.
    pub level: usize,
    /// Chips of one instance of the level below.
    pub chips: u32,
    /// Uplinks of one instance: 1, or one for each position in the node.
    pub positions: u32,
    /// What one of them carries \[B/s\], each way.
    pub capacity: Bandwidth,
}

impl Uplink {
    /// The instance that a rank is in.
    pub fn instance(&self, rank: u32) -> u32 {
        rank / self.chips
    }

    /// The uplink by which a rank leaves its instance.
    pub fn of(&self, rank: u32) -> u32 {
        // Instances are whole nodes, and positions are the chips of a node.
        self.instance(rank) * self.positions + rank % self.positions
    }
}

/// What copies of a group send through the busiest of the uplinks of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The uplinks.
    pub uplink: Uplink,
    /// Copies that cross one uplink at once.
    pub copies: u32,
    /// What one copy's ring, or one message, sends through it, in units of the bytes that pass each rank.
    pub ring: f64,
    /// The same of an all-to-all.
    pub all: f64,
}

/// How often data crosses a level on its way through a group: a level is crossed between two chips that it joins and no inner
/// level does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hops {
    /// Index of the level in the fabric.
    pub level: usize,
    /// Its latency \[ps\].
    pub latency: Time,
    /// Crossings on the way through a ring, of all members but one.
    pub ring: u32,
    /// Doublings of a tree over nodes that cross it; 0 for the level inside a node.
    pub doublings: f64,
}

impl Topology {
    /// The uplinks into each level beyond the network of cards that chips rented can cross, innermost first.
    pub fn uplinks(&self) -> Vec<Uplink> {
        let outer = self.fabric.windows(2).enumerate().skip(1);
        let uplink = |(below, levels): (usize, &[super::Level])| {
            let [inner, level] = levels else { return None };
            let Reach::Chips(chips) = inner.reach else { return None };
            let positions = if inner.kind == LevelKind::Rails { self.node.chips } else { 1 };
            let capacity = f64::from(chips) / f64::from(positions) * level.carries().0;
            let crossed = chips < self.ranks();
            crossed.then_some(Uplink { level: below + 1, chips, positions, capacity: Bandwidth(capacity) })
        };
        outer.filter_map(uplink).collect()
    }

    /// How often the worst group of `size` ranks, `stride` apart, crosses each level; a torus counts its own hops.
    pub fn hops(&self, size: u32, stride: u32) -> Vec<Hops> {
        // Instances of each level that the group spans; of the chips themselves, all members.
        let spanned = |level: Option<usize>| match level.map(|level| self.fabric[level].reach) {
            None => worst(size, stride, 1, self.ranks()).nodes,
            Some(Reach::Chips(chips)) => worst(size, stride, chips, self.ranks()).nodes,
            Some(Reach::Unbounded) => 1,
        };
        // Edges of a ring that lead out of an instance: none where one instance holds all.
        let leave = |spanned: u32| if spanned > 1 { spanned } else { 0 };
        let (mut below, mut begun) = (spanned(None), false);
        let mut hops = vec![];
        for (level, of) in self.fabric.iter().enumerate() {
            let here = spanned(Some(level)).min(below);
            let mut ring = leave(below) - leave(here);
            // All chunks go over all edges of the ring but one: an inner one is left out.
            if ring > 0 && !begun {
                (ring, begun) = (ring - 1, true);
            }
            let doublings = if level == 0 { 0.0 } else { libm::log2(f64::from(below)) - libm::log2(f64::from(here)) };
            if ring > 0 || doublings > 0.0 {
                hops.push(Hops { level, latency: of.latency, ring, doublings });
            }
            below = here;
        }
        hops
    }
}

/// What copies of a group, each with its members in rising order, send through uplinks of a machine of `ranks` chips; none if no
/// copy leaves its instance.
pub fn crossing<M: Iterator<Item = u32>>(
    uplink: Uplink,
    ranks: u32,
    copies: impl Iterator<Item = M>,
) -> Option<Crossing> {
    let mut on = vec![0_u32; (ranks.div_ceil(uplink.chips) * uplink.positions) as usize];
    let mut here = vec![0_u32; uplink.positions as usize];
    let mut members = vec![];
    let (mut ring, mut all) = (0.0_f64, 0.0_f64);
    for copy in copies {
        members.clear();
        members.extend(copy);
        let n = members.len() as f64;
        for below in members.chunk_by(|one, next| uplink.instance(*one) == uplink.instance(*next)) {
            let m = below.len() as f64;
            if below.len() == members.len() {
                continue;
            }
            here.fill(0);
            below.iter().for_each(|rank| here[(rank % uplink.positions) as usize] += 1);
            let first = uplink.instance(below[0]) * uplink.positions;
            for (&count, at) in here.iter().zip(first..).filter(|(count, _)| **count > 0) {
                let share = f64::from(count) / m;
                ring = ring.max(share);
                all = all.max(share * m * (n - m) / (n - 1.0));
                on[at as usize] += 1;
            }
        }
    }
    let copies = on.into_iter().max().unwrap_or(0);
    (copies > 0).then_some(Crossing { uplink, copies, ring, all })
}

/// What messages, each from one rank to another, send through uplinks of a machine of `ranks` chips; none if none leaves its
/// instance.
pub fn crossing_messages(uplink: Uplink, ranks: u32, messages: impl Iterator<Item = (u32, u32)>) -> Option<Crossing> {
    let uplinks = (ranks.div_ceil(uplink.chips) * uplink.positions) as usize;
    let mut ways = [vec![0_u32; uplinks], vec![0_u32; uplinks]];
    for (from, to) in messages.filter(|&(from, to)| uplink.instance(from) != uplink.instance(to)) {
        ways[0][uplink.of(from) as usize] += 1;
        ways[1][uplink.of(to) as usize] += 1;
    }
    let copies = ways.into_iter().flatten().max().unwrap_or(0);
    (copies > 0).then_some(Crossing { uplink, copies, ring: 1.0, all: 1.0 })
}

#[cfg(test)]
mod tests;
