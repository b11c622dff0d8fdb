//! Why a step takes as long as it does: what the chips' peak alone would take, then what each cause adds, until all of the step is told;
//! and for each cause the change that helps most, of those that take more from it than from any other. Each is simulated.
//!
//! ```text
//! kernels of a prediction ─► peak + what they miss of it ┐
//! exposed exchanges, by the link that they cross ────────┼─► causes, which sum to the step ─► changes, simulated
//! the host, a pipeline's bubble ─────────────────────────┘
//! ```

mod cause;
mod changes;
mod json;
mod text;

pub use cause::Cause;
pub use json::report as json;
pub use text::report as text;

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::tick::Tick;
use crate::hardware::{LevelKind, Reach, Topology};
use crate::program::{DType, Group, Pass, Work};
use crate::runtime::Plan;
use crate::scenario::advice::{Tried, tried};
use crate::scenario::{Prediction, Scenario};
use crate::units::Time;

/// A part of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it goes to.
    pub cause: Cause,
    /// Its time, the mean of all ranks \[ps\].
    pub time: Time,
    /// What stands behind it.
    pub detail: String,
    /// The change that helps most, of those that take more from this cause than from any other.
    pub best: Option<Tried>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The step \[ps\].
    pub step: Time,
    /// Tokens of a second on each chip.
    pub rate: f64,
    /// The peak first, then causes, the dearest first. They sum to the step.
    pub rows: Vec<Row>,
    /// Share of all kernels that memory bounds, in number.
    pub kernels: (u64, u64),
    /// Parameters, and those that a token meets.
    pub parameters: (u64, u64),
    /// How many changes were simulated.
    pub simulated: usize,
}

/// Sums of times \[ps\] and numbers of kernels.
#[derive(Default)]
struct Sums {
    times: BTreeMap<Cause, f64>,
    /// Kernels that memory bounds, and all, of one rank.
    kernels: (u64, u64),
    /// Matmul and attention FLOPs by cause, for what is said of their rates.
    flops: [f64; 2],
}

/// Why a step takes as long as it does. `tick` is called as each change is simulated.
pub fn why(scenario: &Scenario, answer: &Prediction, tick: &Tick<'_>) -> Why {
    let sums = sums(scenario, answer);
    let parameters = scenario.job.model().params();
    let changes = changes::all(scenario);
    let before = sums.for_a_token(scenario, answer);
    let tried: Vec<Option<(Cause, Tried)>> = changes
        .par_iter()
        .map(|change| {
            let one = tried(scenario, change);
            tick();
            let (changed, answer, tried) = one?;
            let after = self::sums(&changed, &answer).for_a_token(&changed, &answer);
            Some((most_saved(&before, &after)?, tried))
        })
        .collect();
    let rate = answer.tokens_per_second_per_chip(scenario.topology.chips());
    let best = |cause: &Cause| {
        let own = tried.iter().flatten().filter(|(saved, _)| saved == cause).map(|(_, tried)| tried);
        let gains = own.filter(|one| one.fits && one.rate > 1.005 * rate);
        gains.max_by(|a, b| a.rate.total_cmp(&b.rate)).cloned()
    };
    let mut rows: Vec<Row> = exact(&sums.times, answer.step)
        .into_iter()
        .map(|(cause, time)| Row { detail: detail(scenario, answer, &sums, &cause), best: best(&cause), time, cause })
        .collect();
    rows.sort_by_key(|row| (row.cause != Cause::Peak, std::cmp::Reverse(row.time)));
    Why {
        step: answer.step,
        rate,
        rows,
        kernels: sums.kernels,
        parameters: (parameters.total, parameters.active),
        simulated: tried.iter().flatten().count(),
    }
}

impl Sums {
    /// What each cause takes for a token of each chip \[ps\].
    fn for_a_token(&self, scenario: &Scenario, answer: &Prediction) -> BTreeMap<Cause, f64> {
        let tokens = answer.tokens as f64 / f64::from(scenario.topology.ranks());
        self.times.iter().map(|(cause, time)| (cause.clone(), time / tokens)).collect()
    }
}

/// The cause that a change takes most from; none if it takes from none but the peak.
fn most_saved(before: &BTreeMap<Cause, f64>, after: &BTreeMap<Cause, f64>) -> Option<Cause> {
    let saved = |(cause, time): (&Cause, &f64)| (cause.clone(), time - after.get(cause).copied().unwrap_or_default());
    let causes = before.iter().filter(|(cause, _)| **cause != Cause::Peak).map(saved);
    causes.filter(|(_, saved)| *saved > 0.0).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(cause, _)| cause)
}

/// Times in whole picoseconds that sum to the step: sums are rounded, not parts.
fn exact(times: &BTreeMap<Cause, f64>, step: Time) -> Vec<(Cause, Time)> {
    let all: f64 = times.values().sum();
    let (mut sum, mut before) = (0.0, 0);
    let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
    times
        .iter()
        .map(|(cause, time)| {
            sum += time;
            let until = (share(sum) * step.0 as f64).round().min(step.0 as f64) as u64;
            (cause.clone(), Time(until - std::mem::replace(&mut before, until)))
        })
        .filter(|(_, time)| time.0 > 0)
        .collect()
}

/// The step by cause, the mean of all ranks.
fn sums(scenario: &Scenario, answer: &Prediction) -> Sums {
    let mut sums = Sums::default();
    let ranks: f64 = answer.classes.iter().map(|class| f64::from(class.ranks)).sum::<f64>().max(1.0);
    for (class, busy) in answer.classes.iter().zip(&answer.timeline.busy) {
        let weight = f64::from(class.ranks) / ranks;
        let mut own: BTreeMap<Cause, f64> = BTreeMap::new();
        let program = &class.program;
        for ((kernel, time), count) in program.kernels.iter().zip(&busy.kernel).zip(&class.counts.kernels) {
            if kernel.pass == Pass::Communication || *count == 0 {
                continue;
            }
            let time = time.0 as f64;
            let (cause, dtype) = match (kernel.pass, kernel.work) {
                (Pass::Recompute, _) => (Cause::Recompute, None),
                (Pass::Optimizer, _) => (Cause::Optimizer, None),
                (_, Work::Matmul { dtype, .. } | Work::GroupedMatmul { dtype, .. }) => (Cause::Matmuls, Some(dtype)),
                (_, Work::Attention { dtype, .. }) => (Cause::Attention, Some(dtype)),
                _ => (Cause::Memory, None),
            };
            let memory =
                !matches!(kernel.work, Work::Matmul { .. } | Work::GroupedMatmul { .. } | Work::Attention { .. });
            sums.kernels.0 += if memory { *count } else { 0 };
            sums.kernels.1 += count;
            let flops = kernel.model_flops().0 as f64 * *count as f64;
            let ideal = dtype.map_or(0.0, |dtype| (1e12 * flops / peak(&scenario.topology, dtype)).min(time));
            sums.flops[usize::from(cause == Cause::Attention)] += if dtype.is_some() { flops * weight } else { 0.0 };
            let repeated = ideal * repeated(&scenario.job);
            *own.entry(Cause::Peak).or_default() += ideal - repeated;
            *own.entry(Cause::Repeated).or_default() += repeated;
            *own.entry(cause).or_default() += time - ideal;
        }
        // Kernels on several streams at once are shared out over the time in which any ran.
        let computed: f64 = own.values().sum();
        let scale = if computed > 0.0 { class.breakdown.compute.0 as f64 / computed } else { 0.0 };
        own.values_mut().for_each(|time| *time *= scale);
        for (comm, time) in program.comms.iter().zip(&busy.comm_exposed) {
            let group = program.group(comm.group);
            let link = link(&scenario.topology, group);
            *own.entry(Cause::Exchange { group: group.name.clone(), link }).or_default() += time.0 as f64;
        }
        let exchanges: u64 = busy.exchange_exposed.iter().map(|time| time.0).sum();
        *own.entry(Cause::Exchange { group: "stages".to_owned(), link: "messages".to_owned() }).or_default() +=
            exchanges as f64;
        *own.entry(Cause::Copies).or_default() += busy.kernel_exposed.iter().map(|time| time.0 as f64).sum::<f64>();
        *own.entry(Cause::Host).or_default() += (class.breakdown.host_bound + class.breakdown.waiting).0 as f64;
        *own.entry(Cause::Bubble).or_default() += class.breakdown.bubble.0 as f64;
        for (cause, time) in own {
            *sums.times.entry(cause).or_default() += weight * time;
        }
    }
    // The model's own FLOPs as MFU counts them; what is multiplied besides is a cause of its own.
    let chips = f64::from(scenario.topology.ranks());
    let own = answer.mfu.first().map_or(f64::INFINITY, |mfu| mfu.flops.0 as f64 / chips);
    let own = 1e12 * own / peak(&scenario.topology, scenario.job.dtype());
    if let Some(time) = sums.times.get_mut(&Cause::Peak) {
        let beyond = (*time - own).max(0.0);
        *time -= beyond;
        // Conventions round: they count no norms and no router.
        sums.times.insert(Cause::Beyond, beyond);
    }
    // What the allocator's calls to the device add.
    *sums.times.entry(Cause::Host).or_default() += answer.stall.0 as f64;
    sums
}

/// FLOP/s of a chip.
fn peak(topology: &Topology, dtype: DType) -> f64 {
    let peaks = &topology.chip.peak;
    let of = match dtype {
        DType::Fp8 => peaks.fp8,
        DType::Fp32 => peaks.fp32,
        _ => None,
    };
    of.unwrap_or(peaks.bf16).0
}

/// The share of a chip's matmuls that others do alike.
fn repeated(job: &Plan) -> f64 {
    match job {
        Plan::Xla(plan) => plan.repeated(),
        _ => 0.0,
    }
}

/// The outermost link that a group's ranks exchange over.
fn link(topology: &Topology, group: &Group) -> String {
    let span = u64::from(group.size.saturating_sub(1)) * u64::from(group.stride) + 1;
    let reaches = |reach: Reach| match reach {
        Reach::Chips(chips) => u64::from(chips) >= span,
        Reach::Unbounded => true,
    };
    let level = topology.fabric.iter().find(|level| reaches(level.reach));
    match level.map(|level| (&level.kind, level.name.as_str())) {
        Some((LevelKind::Torus { .. }, _)) => "ICI".to_owned(),
        Some((_, name)) => name.to_owned(),
        None => "the chip".to_owned(),
    }
}

/// What stands behind a cause.
fn detail(scenario: &Scenario, answer: &Prediction, sums: &Sums, cause: &Cause) -> String {
    let time = |cause: &Cause| sums.times.get(cause).copied().unwrap_or_default();
    let tokens = scenario.job.tokens() as f64 / f64::from(scenario.topology.ranks());
    let rate = |flops: f64, took: f64| 1e12 * flops / took.max(1.0) / 1e12;
    let ideal = |flops: f64| 1e12 * flops / peak(&scenario.topology, scenario.job.dtype());
    match cause {
        Cause::Peak => format!("{:.0} TFLOP/s on every chip", peak(&scenario.topology, scenario.job.dtype()) / 1e12),
        Cause::Beyond => "scores that attention makes again, places and masks of experts, look-ups by matmul: MFU does not count them".to_owned(),
        Cause::Repeated => "chips of the axis of experts compute all but experts alike".to_owned(),
        Cause::Matmuls => {
            let took = ideal(sums.flops[0]) + time(cause);
            format!("they reach {:.0} TFLOP/s, with {tokens:.0} tokens a chip", rate(sums.flops[0], took))
        }
        Cause::Attention => {
            let took = ideal(sums.flops[1]) + time(cause);
            format!("it reaches {:.0} TFLOP/s", rate(sums.flops[1], took))
        }
        Cause::Memory => {
            format!("{} of {} kernels: norms, activations, casts, the loss", sums.kernels.0, sums.kernels.1)
        }
        Cause::Recompute => "forward runs again in backward, for memory".to_owned(),
        Cause::Optimizer => "states and gradients are read and written once a step".to_owned(),
        Cause::Exchange { link, .. } if link == "messages" => "between stages of the pipeline".to_owned(),
        Cause::Exchange { link, .. } => format!("over {link}, and nothing hides it"),
        Cause::Copies => "nothing hides them".to_owned(),
        Cause::Host if answer.stall.0 > 0 => {
            "launches, reads of the device's numbers, the allocator's own calls".to_owned()
        }
        Cause::Host => "launches, and reads of the device's numbers".to_owned(),
        Cause::Bubble => "stages wait for others".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_sum_to_the_step_and_each_has_a_change_of_its_own() {
        for text in [
            include_str!("../../scenarios/two-narrow-blocks-4xv6e.toml"),
            include_str!("../../scenarios/llama3.1-8b-fsdp2-8xh100.toml"),
        ] {
            let scenario = Scenario::parse("x.toml", text).expect("it is shipped");
            let answer = scenario.predict().expect("it is simulated");
            let why = why(&scenario, &answer, &|| {});
            assert_eq!(why.rows.iter().map(|row| row.time.0).sum::<u64>(), why.step.0);
            assert_eq!(why.rows[0].cause, Cause::Peak);
            let mut changes: Vec<&str> = why.rows.iter().filter_map(|row| Some(&*row.best.as_ref()?.change)).collect();
            let all = changes.len();
            changes.sort_unstable();
            changes.dedup();
            assert_eq!(changes.len(), all, "a change stands for one cause: {changes:?}");
            // The first row is MFU as the report's head has it.
            let share = why.rows[0].time.seconds() / why.step.seconds();
            assert!(share <= answer.mfu[0].utilisation * 1.001, "{share}");
        }
    }
}
