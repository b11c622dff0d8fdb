//! How much a kernel slows while a collective runs beside it.
//!
//! NCCL's kernels hold SMs and memory bandwidth. The factor is what a survey of overlapped training measured, by
//! class of kernel; a single wave of tiles can lose far more (80 to 47 % utilisation in one report), hence the spread.

use serde::Deserialize;

use super::basis::Evidence;
use crate::program::Work;

/// Slow-down of one class: 1.19 is 19 % slower.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slowdown {
    /// Time under a collective over time alone.
    pub factor: f64,
    /// What it rests on.
    pub evidence: Evidence,
}

/// Interference of collectives with compute.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// Matmuls.
    pub matmul: Slowdown,
    /// Attention.
    pub attention: Slowdown,
    /// Memory-bound kernels.
    pub memory: Slowdown,
    /// Processors that a collective's kernels hold.
    pub processors: u32,
}

impl Overlap {
    pub(super) fn check(self) -> Result<Overlap, String> {
        for (name, class) in [("matmul", &self.matmul), ("attention", &self.attention), ("memory", &self.memory)] {
            if !(1.0..=10.0).contains(&class.factor) {
                return Err(format!("overlap.{name}.factor is {}: expected 1 (no slow-down) to 10", class.factor));
            }
        }
        Ok(self)
    }

    /// Time of `work` under a collective over its time alone.
    pub fn factor(&self, work: &Work) -> f64 {
        match work {
            Work::Matmul { .. } | Work::GroupedMatmul { .. } => self.matmul.factor,
            Work::Attention { .. } => self.attention.factor,
            Work::Memory { .. } => self.memory.factor,
            Work::HostMemory { .. } | Work::HostCopy { .. } | Work::Disk { .. } => 1.0,
        }
    }
}
