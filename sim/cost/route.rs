//! What a collective or message meets on its route besides the links of its nodes: shared uplinks, and latencies other than those
//! of the fabric that was measured.
//!
//! Shared uplinks ([`crate::hardware::uplink`]) bound the bandwidth of a collective of which x bytes pass each rank:
//!
//! ```text
//! B ≤ efficiency · capacity of an uplink / (copies that cross it · bytes of each through it / x)      at every level crossed
//! ```
//!
//! with the efficiency that was measured on the cards. Times were measured on a fabric of known latencies. One that differs moves
//! the time by its difference for each step of the algorithm that crosses the level, as NCCL counts them (`src/graph/tuning.cc`):
//!
//! ```text
//! ring                     each edge that a chunk passes: n − 1 for n members
//! tree (all-reduce)        twice, up and down: the chain of each node, and each doubling of nodes
//! all-reduce in a switch   twice, up and down
//! all-to-all, message      once: all are under way together
//! ```

use crate::hardware::{Crossing, Hops, OUTER};
use crate::program::Collective;
use crate::units::Time;

/// The route of a group or of a message; empty where nobody asks about the fabric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Uplinks that it crosses, one entry for each level.
    pub crossings: Vec<Crossing>,
    /// Crossings of each level, innermost first.
    pub hops: Vec<Hops>,
}

/// Latencies of the fabric on which a profile was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// Between chips of a node, or neighbours of a torus.
    pub inner: Time,
    /// Between nodes, or slices.
    pub network: Time,
}

impl Measured {
    /// NCCL's own figures for NVLink and for InfiniBand, ring with protocol LL (NVIDIA/nccl@5067397c2676:src/graph/tuning.cc), as
    /// every shipped topology of GPUs states them.
    pub const ON_SWITCHES: Measured = Measured { inner: Time(600_000), network: Time(2_700_000) };
    /// As every shipped topology of TPUs states them: "How to Scale Your Model" for neighbours; the network's is assumed there.
    pub const ON_A_TORUS: Measured = Measured { inner: Time(1_000_000), network: Time(10_000_000) };

    /// How much longer one crossing takes than where times were measured \[s\]; negative if less.
    fn later(&self, hops: &Hops) -> f64 {
        let measured = if hops.level == 0 { self.inner } else { self.network };
        hops.latency.seconds() - measured.seconds()
    }
}

impl Route {
    /// How much longer one crossing of a level takes than where times were measured \[s\]; 0 for a level that is not crossed.
    pub(super) fn later(&self, measured: &Measured, level: usize) -> f64 {
        self.hops.iter().find(|hops| hops.level == level).map_or(0.0, |hops| measured.later(hops))
    }

    /// A chunk that goes round a ring \[s\].
    pub(super) fn round_a_ring(&self, measured: &Measured) -> f64 {
        self.hops.iter().map(|hops| f64::from(hops.ring) * measured.later(hops)).sum()
    }

    /// Up a tree over nodes of `members` in a chain each, and down again \[s\].
    pub(super) fn up_and_down(&self, measured: &Measured, members: f64) -> f64 {
        let chain = (members - 1.0).max(0.0) * self.later(measured, 0);
        2.0 * (chain + self.hops.iter().map(|hops| hops.doublings * measured.later(hops)).sum::<f64>())
    }

    /// One message over the outermost level that is crossed \[s\].
    pub(super) fn once(&self, measured: &Measured) -> f64 {
        self.hops.last().map_or(0.0, |hops| measured.later(hops))
    }

    /// The bandwidth that the uplinks leave a collective \[B/s\], at their `efficiency`.
    pub(super) fn bandwidth(&self, kind: Collective, passes: f64, efficiency: f64) -> f64 {
        let each = |crossing: &Crossing| {
            efficiency * crossing.uplink.capacity.0 / (f64::from(crossing.copies) * through(crossing, kind) * passes)
        };
        self.crossings.iter().map(each).fold(f64::INFINITY, f64::min)
    }

    /// Share of an uplink of each outer level that one copy uses when `x` bytes pass each rank in `seconds`.
    pub(super) fn uses(&self, kind: Collective, x: f64, seconds: f64) -> [f64; OUTER] {
        let mut uses = [0.0; OUTER];
        for crossing in &self.crossings {
            let part = through(crossing, kind) * x / (seconds * crossing.uplink.capacity.0);
            // All copies together use no more than there is.
            uses[crossing.uplink.level - 2] = part.clamp(0.0, 1.0 / f64::from(crossing.copies));
        }
        uses
    }
}

/// A time that latencies move by `more`, and whether they do; never less than what its bytes take alone \[s\].
pub(super) fn later(seconds: f64, more: f64, bytes_alone: f64) -> (f64, bool) {
    // As it is, to the last bit, where nothing moves it.
    if more == 0.0 { (seconds, false) } else { ((seconds + more).max(bytes_alone.min(seconds)), true) }
}

/// Bytes of one copy through an uplink, in units of what passes each rank.
fn through(crossing: &Crossing, kind: Collective) -> f64 {
    match kind {
        Collective::AllToAll | Collective::Rows(_) => crossing.all,
        _ => crossing.ring,
    }
}

#[cfg(test)]
mod tests;
