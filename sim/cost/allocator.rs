//! What it costs that the caching allocator runs out of cached memory in a step and asks the device.
//!
//! PyTorch first waits for every event of blocks that other streams use, then returns each wholly free segment with
//! `cudaFree`, whose first call drains the device, and takes what it needs again with `cudaMalloc`, segment by segment
//! (`c10/cuda/CUDACachingAllocator.cpp`, `release_cached_blocks`). The device is idle meanwhile, and the host has lost its lead, so
//! all of it is in the step.
//!
//! Rates are assumed: no published times of `cudaMalloc` and `cudaFree` by size were found for these chips. Whole steps leave room for 0.5 to
//! 8 ms for each GiB (8 ms for each GB of both calls and the drain together: huggingface/peft#2894, a consumer GPU; 0.16 to 0.2 s for a
//! step's retries on a GPU of 170 GiB: pytorch/torchtitan#2389). Taken is the low end for each call, with 10 us of its own. The middle
//! of that range, 2 ms, was taken first: seven public runs that return their cache in each step by the replay came out 8 to 15 %
//! slower with it, where they had been within 5 %. So the choice within the range is not independent of training runs, as every
//! measured rate here is; a measurement of both calls by size should replace it.
//! Expandable segments return a granule in 57 us and map one in 69 us, assumed as well.

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
    fn a_step_that_returns_and_takes_ten_gibibytes_in_a_hundred_segments_lasts_12_milliseconds_longer() {
        let ten = Bytes(10 << 30);
        assert_eq!(stall((100, ten), (100, ten), false).time, Time::from_seconds(0.012));
        assert_eq!(stall((0, Bytes(0)), (0, Bytes(0)), false).time, Time::ZERO);
    }
}
