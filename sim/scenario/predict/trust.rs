//! How far a prediction can be trusted: an interval around the step, and the share that rests on each kind of evidence.

use std::collections::BTreeMap;

use super::class::Class;
use crate::cost::{Basis, Cost};
use crate::engine::Timeline;
use crate::program::{Collective, Dispatch, Instr, MemoryKind, Work};

/// Costs that err together, because one section of the profile answers for them. Matmuls and attention share the clock
/// under the power limit, which is most of what is not known about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Compute,
    HostMemory,
    Disk,
    HostCopy,
    Memory(MemoryKind),
    Collective(usize),
    Launches,
    Events,
    Allocator,
}

impl Family {
    fn of(work: &Work) -> Family {
        match work {
            Work::Matmul { .. } | Work::GroupedMatmul { .. } | Work::Attention { .. } => Family::Compute,
            Work::HostMemory { .. } => Family::HostMemory,
            Work::Disk { .. } => Family::Disk,
            Work::HostCopy { .. } => Family::HostCopy,
            Work::Memory { kind, .. } => Family::Memory(*kind),
        }
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
pub(super) fn trust(classes: &[Class], timeline: &Timeline, stall: Cost) -> (f64, Vec<(Basis, f64)>) {
    let least = (0..classes.len()).min_by_key(|&class| classes[class].breakdown.bubble).unwrap_or(0);
    let Class { program, evidence, breakdown, .. } = &classes[least];
    let busy = &timeline.busy[least];
    let step = (timeline.step + stall.time).seconds();
    let mut halves = BTreeMap::<Family, f64>::new();
    let mut shares = [0.0; Basis::ALL.len()];
    let mut add = |family: Family, seconds: f64, cost: &Cost| {
        *halves.entry(family).or_default() += seconds * cost.spread;
        shares[Basis::ALL.iter().position(|&basis| basis == cost.basis).unwrap_or(0)] += seconds;
    };
    for (index, kernel) in program.kernels.iter().enumerate() {
        add(Family::of(&kernel.work), busy.kernel[index].seconds(), &evidence.kernels[index]);
    }
    for (index, comm) in program.comms.iter().enumerate() {
        add(Family::Collective(comm.kind.family()), busy.comm_exposed[index].seconds(), &evidence.comms[index]);
    }
    for (index, cost) in evidence.exchanges.iter().enumerate() {
        add(Family::Collective(Collective::SendRecv.family()), busy.exchange_exposed[index].seconds(), cost);
    }
    let lazy = |instr: &Instr| matches!(instr, Instr::Host { dispatch: Dispatch::LazyForward, .. });
    let launches = if program.step.iter().any(lazy) { Dispatch::LazyForward } else { Dispatch::EagerForward };
    add(Family::Launches, breakdown.host_bound.seconds(), &evidence.dispatch[launches as usize]);
    add(Family::Events, breakdown.waiting.seconds(), &evidence.event);
    add(Family::Allocator, stall.time.seconds(), &stall);
    let alone = timeline.step.saturating_sub(breakdown.bubble);
    let stretch = if alone.0 == 0 { 1.0 } else { step / alone.seconds() };
    let half = stretch * halves.values().map(|half| half * half).sum::<f64>().sqrt();
    // Kernels on different streams overlap, so parts are shares of their sum.
    let total: f64 = shares.iter().sum();
    let shares = Basis::ALL
        .iter()
        .copied()
        .zip(shares)
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(basis, seconds)| (basis, seconds / total))
        .collect();
    (half / step, shares)
}
