//! How far a prediction can be trusted: an interval around the step, and the share that rests on each kind of evidence.

use super::Class;
use crate::cost::{Basis, Cost};
use crate::engine::Timeline;
use crate::program::{Collective, Dispatch, Work};
use crate::units::Time;

/// The family of costs that err together, because one section of the profile answers for them. Matmuls and attention
/// share the clock under the power limit, which is most of what is not known about them.
fn family(work: &Work) -> usize {
    match work {
        Work::Matmul { .. } | Work::GroupedMatmul { .. } | Work::Attention { .. } => 0,
        Work::HostMemory { .. } => 1,
        Work::Disk { .. } => 2,
        Work::HostCopy { .. } => 3,
        Work::Memory { kind, .. } => 4 + *kind as usize,
    }
}

/// An interval around the step, and the share of it that rests on each kind of evidence.
///
/// Costs of one family err together, families err independently: half-widths add up inside a family and in squares
/// across. A collective counts with the part of it that is exposed, the host with the time the device waited for it,
/// events with the time that passes before a stream goes on.
///
/// Of a pipeline the class counts that waits least for others: it is busy all through the steady part of the step, and so
/// sets its length. While it does wait, another stage does work of the same kinds, which errs as much. So its half-widths
/// are stretched from the time it does not wait to the whole step: costs that are all off by a share move the step by it.
pub(super) fn trust(classes: &[Class], timeline: &Timeline) -> ((Time, Time), Vec<(Basis, f64)>) {
    let least = (0..classes.len()).min_by_key(|&class| classes[class].breakdown.bubble).unwrap_or(0);
    let Class { program, evidence, breakdown, .. } = &classes[least];
    let busy = &timeline.busy[least];
    let step = timeline.step.seconds();
    let mut halves = [0.0; 25];
    let mut shares = [0.0; Basis::ALL.len()];
    let mut add = |family: usize, seconds: f64, cost: &Cost| {
        halves[family] += seconds * cost.spread;
        shares[Basis::ALL.iter().position(|&basis| basis == cost.basis).unwrap_or(0)] += seconds;
    };
    for (index, kernel) in program.kernels.iter().enumerate() {
        add(family(&kernel.work), busy.kernel[index].seconds(), &evidence.kernels[index]);
    }
    for (index, comm) in program.comms.iter().enumerate() {
        add(16 + comm.kind.family(), busy.comm_exposed[index].seconds(), &evidence.comms[index]);
    }
    for (index, cost) in evidence.exchanges.iter().enumerate() {
        add(16 + Collective::SendRecv.family(), busy.exchange_exposed[index].seconds(), cost);
    }
    add(23, breakdown.host_bound.seconds(), &evidence.dispatch[Dispatch::EagerForward as usize]);
    add(24, breakdown.waiting.seconds(), &evidence.event);
    let alone = timeline.step.saturating_sub(breakdown.bubble);
    let stretch = if alone.0 == 0 { 1.0 } else { step / alone.seconds() };
    let half = stretch * halves.iter().map(|half| half * half).sum::<f64>().sqrt();
    let interval = (Time::from_seconds(step - half), Time::from_seconds(step + half));
    // Kernels on different streams overlap, so parts are shares of their sum.
    let total: f64 = shares.iter().sum();
    let shares = Basis::ALL
        .into_iter()
        .zip(shares)
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(basis, seconds)| (basis, seconds / total))
        .collect();
    (interval, shares)
}
