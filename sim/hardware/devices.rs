//! A chip as JAX shows it, in one device or several, and slices as Google counts them, in cores.

use super::{Chip, Level, Reach};
use crate::units::FlopRate;

/// Divides what is written of a chip among its devices.
pub(super) fn share(chip: &mut Chip, fabric: &mut [Level]) {
    if chip.devices == 1 {
        return;
    }
    let share = f64::from(chip.devices);
    let flops = |rate: &mut FlopRate| rate.0 /= share;
    chip.memory.0 /= u64::from(chip.devices);
    chip.l2.0 /= u64::from(chip.devices);
    chip.cores /= chip.devices;
    chip.memory_bandwidth.0 /= share;
    chip.host_bandwidth.0 /= share;
    flops(&mut chip.peak.bf16);
    [&mut chip.peak.fp16, &mut chip.peak.tf32, &mut chip.peak.fp32, &mut chip.peak.fp8]
        .into_iter()
        .flatten()
        .for_each(flops);
    for level in fabric {
        level.bandwidth.0 /= share;
        if let Reach::Chips(reach) = &mut level.reach {
            *reach = reach.saturating_mul(chip.devices);
        }
    }
}

/// Chips of a slice by Google's name of it, which counts cores: `v5p-128` has 64, `v6e-16` has 16, and `tpu7x-8` has 4.
pub(super) fn chips_of(machine: &str, cores: u32, asked: &str) -> Option<u32> {
    let (generation, count) = asked.rsplit_once('-')?;
    let generation = match generation {
        "v5litepod" => "v5e",
        "tpu7x" => "v7x",
        other => other,
    };
    let count: u32 = count.parse().ok().filter(|_| machine.strip_prefix("tpu-") == Some(generation))?;
    count.is_multiple_of(cores).then(|| count / cores)
}
