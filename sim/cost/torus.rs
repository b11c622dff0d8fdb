//! Collectives on the slices of a torus, from what each link carries.
//!
//! A chip has a few links, each of bandwidth w one way. Along an axis that wraps a member has two of them; at the end of
//! one that does not, one, and a collective waits for the end. With V the whole buffer \[B\], N members, and the axes of a
//! group used at once (each has a part of the buffer, gathered along the axes in another order):
//!
//! ```text
//! links          = Σ over axes (2 if it wraps, else 1) / groups that share its links
//! all-gather     = V·(N−1)/N / (links·w·efficiency)
//! reduce-scatter = V·(N−1)/N / min(links·w·efficiency, adds)     adds: what a chip adds up of what arrives
//! all-reduce     = reduce-scatter, then all-gather
//! all-to-all     = most over axes of b·n/8 / w·efficiency (wraps), b·n/4 (open)     b: one member's buffer, n: its axis
//! permute        = b / (w·efficiency), to a neighbour
//! time           = floor + hops·hop + those; hops: half of an axis that wraps, all of an open one
//! ```
//!
//! The first four are those of "How to Scale Your Model" (jax-ml/scaling-book, sharding.md), which leaves out (N−1)/N. The
//! smaller grids are walked as one ring ([`crate::hardware::torus`]), which gives a corner both its links.
//! A chip that JAX shows as two devices has its links once, and a faster way d between the two. Groups that its devices belong to
//! share the links; of one group with both, each byte crosses the links once, and half of the buffer then goes from each device to
//! the other while more arrives. Published all-gathers of TPU7x say so: of 4 members on 2x2x1, both devices of a chip in groups of
//! their own, a chip takes in 0.89 of its two links for both together.
//!
//! ```text
//! all-gather     the longer of V·(M−1)/M · groups / (links·w·efficiency) and V/2 / d      M: chips with members
//! reduce-scatter the same, and adds: what arrives at one device, V·(M−1)/M / 2 + V/2
//! all-to-all     b as all devices of a chip send it, and b/2 / d
//! permute        b · groups / (w·efficiency); between the two of a chip b / d
//! ```
//!
//! Between D slices each rank has its share r of its host's NICs, and the two kinds of links are used one after the other:
//!
//! ```text
//! all-gather, reduce-scatter   V/N·(D−1)/D / r, and that of V inside       all-reduce   twice the first, and that inside
//! all-to-all                   b·(D−1)/D / r, and that of b inside         permute      b / r
//! ```

use serde::Deserialize;

use super::basis::{Basis, Evidence};
use super::comm::CommCost;
use super::route::{Measured, Route};
use crate::hardware::{Line, OUTER, OnTorus};
use crate::program::Collective;
use crate::units::{Bandwidth, Bytes, Time};

/// The section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    /// Links of one chip, over which the bandwidth is divided.
    links: u32,
    /// What one device of a chip can send to the other, where JAX shows it as two.
    #[serde(default)]
    on_chip: Option<Bandwidth>,
    /// Share of a link's bandwidth that a collective reaches.
    efficiency: f64,
    /// What a rank adds up of what arrives.
    adds: Bandwidth,
    /// One hop between neighbours.
    hop: Time,
    /// What a collective of no bytes between neighbours takes, less the hop.
    floor: Time,
    /// What the links within a slice rest on.
    evidence: Evidence,
    slices: Slices,
}

/// Between slices.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Slices {
    /// A rank's share of its host's NICs, one direction.
    nic: Bandwidth,
    /// Share of it that a collective reaches.
    efficiency: f64,
    latency: Time,
    evidence: Evidence,
}

/// Collectives of one chip and its torus.
#[derive(Clone, Debug)]
pub(super) struct Torus {
    written: Written,
    /// One link, one direction.
    link: Bandwidth,
    /// Latencies of the torus that was measured.
    measured: Measured,
}

/// What one stage of a collective takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stage {
    seconds: f64,
    /// Bytes that one chip sends over all its links.
    sent: f64,
}

impl std::ops::Add for Stage {
    type Output = Stage;

    fn add(self, other: Stage) -> Stage {
        Stage { seconds: self.seconds + other.seconds, sent: self.sent + other.sent }
    }
}

impl Torus {
    /// Understands a section; `all` is the bandwidth of all links of a chip, one direction.
    pub(super) fn new(all: Bandwidth, written: Written, measured: Measured) -> Result<Torus, String> {
        for (name, share) in [("efficiency", written.efficiency), ("slices.efficiency", written.slices.efficiency)] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(format!(
                    "torus.{name} is {share}: expected a share of the line rate, above 0 and at most 1"
                ));
            }
        }
        if written.links == 0 || !(all.0 > 0.0 && written.adds.0 > 0.0 && written.slices.nic.0 > 0.0) {
            return Err("link, torus.links, torus.adds and torus.slices.nic must be above zero".to_owned());
        }
        let link = Bandwidth(all.0 / f64::from(written.links));
        Ok(Torus { written, link, measured })
    }

    /// Links that a chip at the worst place has, as far as its group has them to itself.
    fn links(on: &OnTorus) -> f64 {
        let used = on.lines.iter().filter(|line| line.members > 1);
        let all: f64 = used.map(|line| if line.wraps { 2.0 } else { 1.0 } / f64::from(line.sharing.max(1))).sum();
        all / f64::from(on.beside.max(1))
    }

    /// What each device of a chip sends to the others of its group on the same chip, of `v` bytes that lie on all of them: the share
    /// \[B\], and the time \[s\].
    fn on_chip(&self, v: f64, on: &OnTorus) -> (f64, f64) {
        let own = f64::from(on.on_chip.max(1));
        let share = v * (own - 1.0) / own;
        (share, share / self.between_devices())
    }

    /// What one device of a chip gets from the other \[B/s\].
    fn between_devices(&self) -> f64 {
        self.written.on_chip.unwrap_or(self.link).0 * self.written.efficiency
    }

    /// One hop between neighbours \[s\].
    fn hop(&self, route: &Route) -> f64 {
        (self.written.hop.seconds() + route.later(&self.measured, 0)).max(0.0)
    }

    /// The way to the farthest member \[s\].
    fn reach(&self, on: &OnTorus, hop: f64) -> f64 {
        let hops = |line: &Line| {
            let steps = if line.wraps { line.members / 2 } else { line.members - 1 };
            f64::from(steps * line.sharing)
        };
        hop * on.lines.iter().filter(|line| line.members > 1).map(hops).sum::<f64>()
    }

    /// Every member gets all of a buffer of `v` bytes.
    fn gather(&self, v: f64, on: &OnTorus, hop: f64) -> Stage {
        let chips = f64::from(on.chips());
        let sent = v * (chips - 1.0) / chips;
        let rate = Self::links(on) * self.link.0 * self.written.efficiency;
        let over_links = if chips < 2.0 { 0.0 } else { sent / rate };
        Stage { seconds: self.reach(on, hop) + over_links.max(self.on_chip(v, on).1), sent }
    }

    /// Every member gets its part of the sum of buffers of `v` bytes.
    fn scatter(&self, v: f64, on: &OnTorus, hop: f64) -> Stage {
        let stage = self.gather(v, on, hop);
        let arrives = stage.sent / f64::from(on.on_chip.max(1)) + self.on_chip(v, on).0;
        Stage { seconds: stage.seconds.max(self.reach(on, hop) + arrives / self.written.adds.0), ..stage }
    }

    /// Every member sends a part of its `b` bytes to every other.
    fn exchange(&self, b: f64, on: &OnTorus, hop: f64) -> Stage {
        let rate = self.link.0 * self.written.efficiency;
        let along = |line: &Line| {
            let (n, groups) = (f64::from(line.members), f64::from(line.sharing.max(1)));
            // What crosses the busiest link: in a ring each way a quarter of the way on average; the middle of a line.
            let crosses = if line.wraps { b * n / 8.0 } else { b * (n / 2.0).floor() * (n / 2.0).ceil() / n };
            let crosses = crosses * f64::from(on.on_chip * on.beside);
            (crosses * groups / rate, crosses * if line.wraps { 2.0 } else { 1.0 })
        };
        let lines = on.lines.iter().filter(|line| line.members > 1).map(along);
        let (slowest, sent) = lines.fold((0.0_f64, 0.0), |(t, sent), (seconds, bytes)| (t.max(seconds), sent + bytes));
        Stage { seconds: self.reach(on, hop) + slowest.max(self.on_chip(b, on).1), sent }
    }

    /// The next member gets `b` bytes.
    fn pass(&self, b: f64, on: &OnTorus, hop: f64) -> Stage {
        if on.chips() < 2 && on.on_chip > 1 {
            return Stage { seconds: b / self.between_devices(), sent: 0.0 };
        }
        let far = on.lines.iter().map(|line| line.sharing).max().unwrap_or(1);
        let (seconds, crosses) = (hop * f64::from(far), b * f64::from(far * on.beside.max(1)));
        Stage { seconds: seconds + crosses / (self.link.0 * self.written.efficiency), sent: b }
    }

    /// Time of a collective; `nic` is a chip's share of its host's NICs where the topology knows better.
    pub(super) fn cost(
        &self,
        kind: Collective,
        bytes: Bytes,
        (on, route): (OnTorus, &Route),
        nic: Option<Bandwidth>,
    ) -> CommCost {
        let (inside, slices) = (f64::from(on.members()), f64::from(on.slices.max(1)));
        if bytes.0 == 0 || inside * slices < 2.0 {
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
        let (size, hop) = (bytes.0 as f64, self.hop(route));
        // What a chip sends to other slices; of what all in a slice have, each sends its part.
        let leaving = (slices - 1.0) / slices;
        let (stage, out) = match kind {
            Collective::AllGather | Collective::Broadcast => (self.gather(size, &on, hop), size / inside * leaving),
            Collective::ReduceScatter => (self.scatter(size, &on, hop), size / inside * leaving),
            Collective::AllReduce => {
                (self.scatter(size, &on, hop) + self.gather(size, &on, hop), 2.0 * size / inside * leaving)
            }
            // Rows to experts, as the all-to-all that they are.
            Collective::AllToAll | Collective::Rows(_) => (self.exchange(size, &on, hop), size * leaving),
            Collective::SendRecv if slices > 1.0 => (Stage::default(), size),
            Collective::SendRecv => (self.pass(size, &on, hop), 0.0),
        };
        let between = &self.written.slices;
        let nic = nic.unwrap_or(between.nic).0.max(1.0);
        let seconds = self.written.floor.seconds() + stage.seconds;
        let latency = (between.latency.seconds() + route.later(&self.measured, 1)).max(0.0);
        let seconds = if slices > 1.0 { seconds + latency + out / (nic * between.efficiency) } else { seconds };
        // Two kinds of links in a row: the weaker evidence, the wider interval.
        let evidence = if slices > 1.0 { &between.evidence } else { &self.written.evidence };
        let basis = evidence.basis.and(self.written.evidence.basis).and(Basis::Interpolated);
        // Small ones are latency, of which little was measured.
        let widen = if stage.sent.max(out) < 1e6 { 2.0 } else { 1.0 };
        let busy = |bytes: f64, rate: f64| (bytes / (seconds * rate)).clamp(0.0, 1.0);
        CommCost {
            time: Time::from_seconds(seconds),
            spread: widen * evidence.spread().max(self.written.evidence.spread()),
            basis,
            inside: busy(stage.sent, self.link.0 * f64::from(self.written.links)),
            across: busy(out, nic),
            outer: [0.0; OUTER],
        }
    }
}

#[cfg(test)]
mod tests;
