//! Whether a matmul exchanges its weight in windows, beside its own parts, or the partitioner leaves a collective whole.
//!
//! XLA's partitioner compares (openxla/xla, `xla/service/spmd/dot_handler.cc`, `disable_windowed_einsum`): a windowed product
//! takes the longer of the matmul and of the exchange over one axis, and two windows more; one after the other they take the
//! matmul and the exchange over all axes that the compiler counts. libtpu counts one axis, and one more for each that closes
//! into a ring: so steps compiled for 2x4, 4x4 and 16x16 have it (`tests/oracles/xla_steps.json`, libtpu 0.0.42.1).
//!
//! It has no windows at all where there would be more than [`MOST`], or where chips with other tokens have the same shard
//! (`tests/oracles/xla-windows.json`).

use crate::units::Finite;

/// Windows that a matmul has at most (`max_windowed_einsum_iteration`, its default).
pub const MOST: u32 = 32;

/// What the partitioner knows of the chip and of the chips that share a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Windows {
    /// Rows of a matmul that take as long as its weight takes over one axis: peak arithmetic \[FLOP/s\] over bandwidth of an
    /// axis, both ways \[B/s\]; a weight's number is two bytes, and two operations a row.
    /// None: the network has no axes, and nothing is exchanged in windows.
    pub even_rows: Option<Finite>,
    /// Axes that a collective among those who share a weight is taken to use at once: one, and one more for each that closes
    /// into a ring; both of a slice of 2x2.
    pub axes: u32,
    /// Whether chips that have other tokens have other shards, too: no axis of the mesh is of data alone.
    pub apart: bool,
}

impl Windows {
    /// Whether a matmul of so many rows exchanges with `shards` chips in windows.
    pub fn pay(self, rows: u64, shards: u32) -> bool {
        let Some(even_rows) = self.even_rows else { return false };
        let matmul = rows as f64 / even_rows.get();
        let (axis, axes) = (1.0, f64::from(self.axes));
        let gains = matmul.max(axis) + 2.0 * axis / f64::from(shards) < matmul + axis / axes;
        self.apart && shards <= MOST && gains
    }
}
