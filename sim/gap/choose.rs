//! Which step of a trace is compared, and which rank.

use crate::statistics::of_sorted;
use crate::trace::{Id, Step, Trace};

/// The step with this number in its mark; or of those that a device ran whole, without the first, the one of median length.
pub fn step(trace: &Trace, device: u32, number: Option<u64>) -> Result<Id<Step>, String> {
    let ran = |step: &Step| step.windows.iter().find(|window| window.device == device).copied();
    let all: Vec<(usize, &Step)> = trace.steps.iter().enumerate().filter(|(_, step)| ran(step).is_some()).collect();
    if let Some(number) = number {
        let found = all.iter().find(|(_, step)| step.number == Some(number));
        return found.map(|(at, _)| Id::new(*at)).ok_or_else(|| {
            let known: Vec<String> =
                all.iter().filter_map(|(_, step)| step.number).map(|number| number.to_string()).collect();
            match known.is_empty() {
                true => format!("--step {number}: the trace marks no steps: leave --step out to take it whole"),
                false => format!("--step {number}: the trace has no such step: write one of {}", known.join(", ")),
            }
        });
    }
    let length = |step: &Step| ran(step).map_or(0, |window| window.end.saturating_sub(window.start));
    let whole = |step: &Step| ran(step).is_some_and(|window| window.is_whole);
    // The first step in a trace carries what starting the profiler costs.
    let mut steady: Vec<(usize, &Step)> = all.iter().skip(1).filter(|(_, step)| whole(step)).copied().collect();
    if steady.is_empty() {
        steady = all.iter().filter(|(_, step)| whole(step)).copied().collect();
    }
    if steady.is_empty() {
        steady = all;
    }
    steady.sort_by_key(|(at, step)| (length(step), *at));
    let middle = of_sorted(&steady, 0.5);
    middle
        .map(|(at, _)| Id::new(*at))
        .ok_or_else(|| "the trace has no kernel of a device: was it recorded with CUDA activities?".to_owned())
}

/// Devices of a trace that ran anything, each with its rank: the trace's if it is told and there is one device, else the device's number.
pub fn ranks(trace: &Trace) -> Vec<(u32, u32)> {
    let mut devices: Vec<u32> = trace.steps.iter().flat_map(|step| &step.windows).map(|window| window.device).collect();
    devices.sort_unstable();
    devices.dedup();
    match (&devices[..], trace.rank) {
        (&[device], Some(rank)) => vec![(rank, device)],
        // One process that hides the other devices counts its own from 0.
        (&[device], None) => vec![(0, device)],
        _ => devices.into_iter().map(|device| (device, device)).collect(),
    }
}
