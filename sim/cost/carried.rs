//! A profile carried over to another chip of the same kind, by that chip's own figures.
//!
//! ```text
//! matmuls     the wave model of the chip, corrected by what was measured at the shape on the profile's chip
//! attention   rate · peak of the chip / peak of the profile's chip
//! memory      a buffer takes as long as one that is smaller by the ratio of bandwidths took, so latencies stay
//! clocks      power for each processor over that on the profile's chip, to the power of 1/2.5, at most 1
//! ```
//!
//! The exponent is that of [`super::clock`]. Collectives, the host and the memory that no tensor owns stay. The same chip on a board that
//! may draw less has its clocks under that limit ([`clock::under`]).
//!
//! How wrong that is was measured where two chips of one kind have profiles of their own: H100 carried over to H200's bandwidth, and
//! back (`carried/tests.rs`). Chips that also differ in their processors are further apart: their intervals are twice as wide.

use super::basis::{Basis, Evidence};
use super::clock;
use super::profile::Profile;
use super::waves::Chip;
use crate::hardware::{self, Peak};
use crate::units::{FlopRate, Power};

/// How far a chip may be from its profile's, as a factor, for the profile to be carried over: an RTX A6000 is half of an A100, as
/// datasheets round both.
pub const FARTHEST: f64 = 2.05;

/// What carrying over adds to the 90th percentile of an error: the error of memory-bound kernels and matmuls of H100 and H200,
/// carried over to each other, at its 90th percentile.
const BANDWIDTH_ONLY: f64 = 0.09;

impl Evidence {
    /// The same of a chip that nobody measured.
    pub(super) fn carried_over(&mut self, error: f64) {
        self.basis = self.basis.and(Basis::Extrapolated);
        self.p90 = libm::hypot(self.p90, error);
    }
}

impl Profile {
    /// The profile carried over to a chip.
    #[doc(hidden)]
    pub fn carried_over(mut self, chip: &hardware::Chip) -> Profile {
        let measured = self.bf16.chip;
        let peak = chip.peak.bf16.0 / measured.peak.0;
        let bandwidth = chip.memory_bandwidth.0 / measured.bandwidth.0;
        let processors = f64::from(chip.cores);
        let same_processors = processors == measured.processors && (peak - 1.0).abs() < 0.05;
        let error = if same_processors { BANDWIDTH_ONLY } else { 2.0 * BANDWIDTH_ONLY };
        // A peak that the file leaves out has the ratio of bf16's.
        let Peak { fp8, tf32, fp32, .. } = chip.peak;
        let of_groups = self
            .grouped
            .iter_mut()
            .flat_map(|grouped| [(&mut grouped.bf16, Some(chip.peak.bf16)), (&mut grouped.fp8, fp8)]);
        for (matmul, own) in [
            (&mut self.bf16, Some(chip.peak.bf16)),
            (&mut self.fp8, fp8),
            (&mut self.tf32, tf32),
            (&mut self.fp32, fp32),
        ]
        .into_iter()
        .chain(of_groups)
        {
            let peak = own.unwrap_or(FlopRate(matmul.chip.peak.0 * peak));
            matmul.chip = Chip { processors, peak, bandwidth: chip.memory_bandwidth };
            matmul.evidence.carried_over(error);
        }
        self.attention.carried_over(peak, processors, error);
        self.memory.carried_over(bandwidth, error);
        if let (Some(own), Some(limit)) = (chip.power, self.machine.power_limit) {
            let each = (own.0 / processors) / (limit.0 / measured.processors);
            self.clock.slower(libm::pow(each, 1.0 / clock::LAW).min(1.0));
        }
        self.clock.evidence.carried_over(error);
        self.machine.l2 = Some(chip.l2);
        self
    }

    /// The profile of boards that may draw `limit` where they could draw `own`.
    #[doc(hidden)]
    pub fn limited(mut self, limit: Power, own: Power) -> Profile {
        self.clock.slower(clock::under(limit, own));
        self.clock.evidence.carried_over(clock::doubt(limit, own));
        self
    }

    /// Whether its clocks are already those of a board whose limit is below that of the board measured.
    pub(crate) fn is_limited(&self) -> bool {
        self.clock.scaled
    }
}

#[cfg(test)]
mod tests;
