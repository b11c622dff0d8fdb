//! What it costs that the caching allocator runs out of cached memory in a step and asks the device.
//!
//! PyTorch first waits for every event of blocks that other streams use, then returns each wholly free segment with
//! `cudaFree`, whose first call drains the device, and takes what it needs again with `cudaMalloc`, segment by segment
//! (`c10/cuda/CUDACachingAllocator.cpp`, `release_cached_blocks`). The device is idle meanwhile, and the host has lost its lead, so
//! all of it is in the step.
//!
//! Rates: 10 us a call and 0.5 ms for each GiB, `cudaMalloc` and `cudaFree` alike: assumed, at the lower end of what is published (8 ms for each GB of both
//! together on a slow host, huggingface/peft issues, and 0.16 to 0.2 s for a step's retries at 64 GiB, pytorch/torchtitan#2389).
//! Expandable segments return a granule in 57 us and map one in 69 us (cuMemUnmap, cuMemMap and cuMemSetAccess; assumed per
//! granule from published figures at 2 MiB).

use super::basis::{Basis, Cost};
use crate::units::{Bytes, Time};

/// A call to the device \[s\].
const CALL: f64 = 10e-6;
/// For each GiB of a segment \[s\].
const GIB: f64 = 0.5e-3;
/// Returning, and mapping, a granule of an expandable segment \[s\].
const GRANULE: [f64; 2] = [57e-6, 69e-6];
/// Half the width of an 80 % interval, as a share.
const SPREAD: f64 = 0.7;

/// The time that a step's calls to the device for memory add to it: how many segments (granules of expandable ones) are
/// returned and taken, and their bytes.
pub fn stall(returned: (u64, Bytes), taken: (u64, Bytes), expandable_segments: bool) -> Cost {
    let seconds = match expandable_segments {
        true => returned.0 as f64 * GRANULE[0] + taken.0 as f64 * GRANULE[1],
        false => CALL * (returned.0 + taken.0) as f64 + GIB * (returned.1.gib() + taken.1.gib()),
    };
    Cost { time: Time::from_seconds(seconds), spread: SPREAD, basis: Basis::Assumed }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_step_that_returns_and_takes_ten_gibibytes_in_a_hundred_segments_lasts_42_milliseconds_longer() {
        let ten = Bytes(10 << 30);
        assert_eq!(stall((100, ten), (100, ten), false).time, Time::from_seconds(0.042));
        assert_eq!(stall((0, Bytes(0)), (0, Bytes(0)), false).time, Time::ZERO);
    }
}
