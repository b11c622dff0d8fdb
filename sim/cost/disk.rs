//! What files on a node's disks take to read and write: the rates that a topology states, in equal shares of the ranks of a node,
//! which all ask at once.

use super::basis::{Basis, Cost};
use crate::units::{Bandwidth, Bytes};

/// Half-width of the interval around a stated rate, relative: a vendor's figures are of long sequential accesses.
const SPREAD: f64 = 0.3;

/// One rank's share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disks {
    /// Read \[B/s\].
    pub read: Bandwidth,
    /// Written \[B/s\].
    pub write: Bandwidth,
}

impl Disks {
    pub(super) fn cost(self, bytes: Bytes, write: bool) -> Cost {
        let rate = if write { self.write } else { self.read };
        Cost { time: bytes / rate, spread: SPREAD, basis: Basis::Datasheet }
    }
}
