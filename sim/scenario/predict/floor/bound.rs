//! What a plan needs at least.

use crate::units::{Bytes, Time};

/// What a plan needs at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Memory of the fullest device, with what lives outside the allocator \[B\]; zero where nothing is known.
    pub memory: Bytes,
    /// The steady step \[ps\]; zero where nothing is known.
    pub step: Time,
}

impl Floor {
    /// Whether the plan cannot fit the device.
    pub fn exceeds(&self, capacity: Bytes) -> bool {
        self.memory > capacity
    }
}
