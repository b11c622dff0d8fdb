//! Whether a matmul exchanges its weight in windows, beside its own parts, or the partitioner leaves a collective whole.
//!
//! XLA's partitioner compares (openxla/xla, `xla/service/spmd/dot_handler.cc`, `disable_windowed_einsum`): a windowed product
//! takes the longer of the matmul and of the exchange over one axis, and two windows more; one after the other they take the
//! matmul and the exchange over all axes that the compiler counts. libtpu counts one axis, and one more for each that closes
//! into a ring: so steps compiled for 2x4, 4x4 and 16x16 have it (`tests/oracles/xla_steps.json`, libtpu 0.0.42.1).

/// What the partitioner knows of the chip and of the chips that share a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    /// Rows of a matmul that take as long as its weight takes over one axis: peak arithmetic \[FLOP/s\] over bandwidth of an
    /// axis, both ways \[B/s\]; a weight's number is two bytes, and two operations a row.
    pub even_rows: f64,
    /// Axes of the slice that close into rings among those that share a weight.
    pub rings: u32,
}

impl Windows {
    /// Whether a matmul of so many rows exchanges with `shards` chips in windows.
    pub fn pay(self, rows: u64, shards: u32) -> bool {
        let matmul = rows as f64 / self.even_rows;
        let (axis, axes) = (1.0, f64::from(self.rings + 1));
        matmul.max(axis) + 2.0 * axis / f64::from(shards) < matmul + axis / axes
    }
}
