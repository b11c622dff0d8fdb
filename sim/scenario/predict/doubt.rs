//! How far what a device needs may be off, and the chance that a step fits.

use crate::hardware::Vendor;
use crate::memory;
use crate::program::{Discipline, Program};
use crate::runtime::{Parts, Plan};
use crate::scenario::Scenario;
use crate::units::Bytes;

/// How far the compiler's peak may be from the predicted one in MaxText's layout with full remat: no step compiled for v6e that
/// `tests/oracles/xla_steps.json` holds is further off, and of `xla-edge.json` two of 98.
pub const COMPILED: f64 = 0.055;

/// The same of a step that is written out block by block, has another loss, or a policy that keeps more than blocks' inputs: no step of
/// `tests/oracles/xla-unseen.json` is further off. Of all 164 in plain JAX, those of `xla-plain.json` with them, ten need more than their
/// doubt, and so do two of 55 in `xla-edge.json`.
pub const COMPILED_OTHERWISE: f64 = 0.12;

/// The same on GPUs, where the compiler's heap takes more than what is live at once: of seven steps compiled for H100 the furthest
/// off takes that much (`tests/oracles/xla-gpu.json`).
pub const COMPILED_ON_GPUS: f64 = 0.18;

/// The same on v5p, whatever the layout: eight in ten of 23 steps in MaxText's layout that were compiled for it are no further off
/// (`tests/oracles/xla-chips.json`). Of 37 for v5e nine in ten are as close as those for v6e, and have its figures.
const COMPILED_FOR_V5P: f64 = 0.125;

/// The same on TPUs that no step was compiled for here. MaxText's 52B on two slices of 384 v4 chips is reported to need 33.27 GiB by its
/// compiler, where 27.0 are predicted.
const COMPILED_FOR_OTHERS: f64 = 0.23;

/// Chips for which how a step is laid out decides how well its peak is known.
const COMPARED: [&str; 2] = ["tpu-v6e", "tpu-v5e"];

/// How far what PyTorch's own sharding allocates may be off (half-width of an 80 % interval). Its steps are recorded to the byte; that another
/// release or switch differs by so much is assumed, as nearly no public run says what its tensors took.
pub const RECORDED: f64 = 0.005;

/// The same of other frameworks: eight in ten of 221 runs of Megatron-LM whose `max_memory_allocated` is public are no further off, one
/// of 87 models by a publisher counting as much as another.
pub const ALLOCATED: f64 = 0.02;

/// The share of other frameworks' runs that do not take what is predicted at all. Of 46 configurations of Megatron and DeepSpeed that are public
/// and near their limit, four went through though 20 to 42 % too much was predicted, and one died with 15 % to spare: one in nine. Three of
/// the four are BLOOM's with 14,400 numbers a token, whose allocator kept fewer pieces than is predicted; the fourth is printed with
/// another micro-batch and other virtual stages than its recipe has.
const SURPRISES: f64 = 0.11;

/// How far what a step needs may be off.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Doubt {
    /// Half-width of an 80 % interval \[B\].
    pub(super) bytes: Bytes,
    /// The share of such steps that do not take what is predicted at all.
    pub(super) surprises: f64,
    /// What it is about, in words.
    pub(super) about: String,
}

impl Doubt {
    /// Of a program that takes `wanted` in all, `outside` of it beside the allocator.
    pub(super) fn of(scenario: &Scenario, program: &Program, (outside, wanted): (Bytes, Bytes)) -> Doubt {
        let part = |whole: Bytes, spread: f64| whole.0 as f64 * spread;
        let bytes = |bytes: f64| Bytes(bytes.round() as u64);
        let gib = |bytes: Bytes| format!("{:.2} GiB", bytes.gib());
        if program.memory == Discipline::Static {
            let chip = &scenario.topology.chip;
            let name = scenario.profile.name.as_str();
            let elsewhere = chip.vendor == Vendor::Google && !COMPARED.contains(&name);
            let share = match scenario.job.parts() {
                Parts::Compiled(job) if job.gpu().is_some() => COMPILED_ON_GPUS,
                _ if name == "tpu-v5p" => COMPILED_FOR_V5P,
                _ if elsewhere => COMPILED_FOR_OTHERS,
                Parts::Compiled(job) if job.is_laid_out_otherwise() => COMPILED_OTHERWISE,
                _ => COMPILED,
            };
            let doubt = bytes(part(wanted, share)).max(program.unsettled);
            let for_chip = if elsewhere { format!(" for {}", chip.name) } else { String::new() };
            let about = format!("the compiler's peak{for_chip} is known to ± {}", gib(doubt));
            return Doubt { bytes: doubt, surprises: 0.0, about };
        }
        let (allocated, surprises) = match scenario.job {
            Plan::Torch(_) => (RECORDED, 0.0),
            _ => (ALLOCATED, SURPRISES),
        };
        let beside = part(outside, scenario.profile.overheads.evidence.spread());
        let doubt = bytes(libm::hypot(beside, part(wanted.saturating_sub(outside), allocated)));
        let about = format!("what a step needs is known to ± {}, tensors to {:.1} %", gib(doubt), 100.0 * allocated);
        Doubt { bytes: doubt, surprises, about }
    }
}

/// The chance that a step which needs so much fits into so much \[B\].
///
/// Errors of memory are distributed as Laplace's: of the runs behind [`ALLOCATED`] half are within 0.45 of what eight in ten are within,
/// and nine in ten within 1.4 of it, as ln 2 and ln 10 are to ln 5. Surprises are as likely as a step's size is far from the device's.
pub(super) fn chance(needs: Bytes, has: Bytes, (doubt, surprises): (Bytes, f64)) -> f64 {
    let to_spare = has.0 as f64 - needs.0 as f64;
    let tail = |scale: f64| 0.5 * libm::exp(-to_spare.abs() / scale.max(1.0));
    let (core, wide) = (tail(doubt.0 as f64 / libm::log(5.0)), tail(has.0 as f64));
    let tail = (1.0 - surprises) * core + surprises * wide;
    if to_spare < 0.0 { tail } else { 1.0 - tail }
}

/// The chance that a program of PyTorch's own sharding fits where the allocator may take so much, and whether its replay does.
#[doc(hidden)]
pub fn chance_within(program: &Program, capacity: Bytes, expandable_segments: bool) -> (f64, bool) {
    let replay = |capacity: Bytes| memory::replay(program, memory::Settings { expandable_segments, capacity });
    let free = replay(Bytes(u64::MAX / 4));
    let runs = replay(capacity).out_of_memory.is_none();
    let doubt = Bytes((free.peak_reserved.0 as f64 * RECORDED) as u64);
    let takes = Takes { allocated: free.peak_allocated, wanted: free.peak_reserved, outside: Bytes(0), runs };
    let needs = needs(program, takes, (capacity, doubt), expandable_segments);
    (chance(needs, capacity, (doubt, 0.0)), runs)
}

/// What a step takes of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes {
    /// Tensors at their peak \[B\].
    pub(super) allocated: Bytes,
    /// What it would like to have in all \[B\].
    pub(super) wanted: Bytes,
    /// What of that lies outside the allocator \[B\].
    pub(super) outside: Bytes,
    /// Whether it runs in what the device has.
    pub(super) runs: bool,
}

/// Bisections of the allocator's limit near the edge: the need is known to a sixteenth of the doubt.
const HALVINGS: u32 = 5;

/// The least device memory that a step runs in \[B\]: an allocator whose cache would outgrow the device gives cached segments back, so it is
/// less than the step would like to have. Looked for only where it decides: within twice the doubt of what the device has. A step may run in
/// less and not in more, by what is given back when; what the device has decides then.
pub(super) fn needs(
    program: &Program,
    takes: Takes,
    (capacity, doubt): (Bytes, Bytes),
    expandable_segments: bool,
) -> Bytes {
    let Takes { allocated, wanted, outside, runs: runs_here } = takes;
    if program.memory == Discipline::Static {
        return wanted;
    }
    let near = Bytes(2 * doubt.0);
    let runs = |total: Bytes| {
        let capacity = total.saturating_sub(outside);
        memory::replay(program, memory::Settings { expandable_segments, capacity }).out_of_memory.is_none()
    };
    let (mut too_little, mut enough) = if runs_here {
        let (enough, least) = (wanted.min(capacity), (allocated + outside).max(capacity.saturating_sub(near)));
        if least >= enough {
            return enough;
        }
        if runs(least) {
            return least;
        }
        (least, enough)
    } else {
        let most = wanted.min(capacity + near);
        if most <= capacity || most < wanted && !runs(most) {
            return wanted.max(capacity);
        }
        (capacity, most)
    };
    for _ in 0..HALVINGS {
        let middle = Bytes(too_little.0 + (enough.0 - too_little.0) / 2);
        *(if runs(middle) { &mut enough } else { &mut too_little }) = middle;
    }
    enough
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_step_that_just_fits_is_a_coin_toss_and_one_at_the_doubt_is_nine_to_one() {
        let at = |needs: u64| chance(Bytes(needs * GIB), Bytes(80 * GIB), (Bytes(GIB), 0.0));
        assert!((at(80) - 0.5).abs() < 1e-12);
        assert!((at(79) - 0.9).abs() < 1e-12 && (at(81) - 0.1).abs() < 1e-12);
        assert!(at(77) > 0.99 && at(83) < 0.01);
    }

    #[test]
    fn without_doubt_it_is_yes_or_no() {
        assert_eq!(chance(Bytes(79 * GIB), Bytes(80 * GIB), (Bytes(0), 0.0)), 1.0);
        assert_eq!(chance(Bytes(81 * GIB), Bytes(80 * GIB), (Bytes(0), 0.0)), 0.0);
    }

    #[test]
    fn what_may_surprise_is_never_certain() {
        let at = |needs: u64| chance(Bytes(needs * GIB), Bytes(80 * GIB), (Bytes(GIB), 0.2));
        assert!((0.9..0.96).contains(&at(60)) && (0.04..0.1).contains(&at(100)), "{} {}", at(60), at(100));
    }
}
