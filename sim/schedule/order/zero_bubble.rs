//! ZB-1p and ZB-2p: schedules searched for given costs within a memory limit, as Qi et al. 2024 (arXiv 2401.10241,
//! section 3.1) propose; the search here is our own.
//!
//! Every rank takes what is there: a gradient before a micro-batch (if memory allows), and gradients of weights while
//! neither is. Whether a rank waits for what arrives within a part of a turn instead of starting something else is tried
//! out in quarters, and the best of 25 is kept. The measure is the paper's: the longest time from a rank's first action to
//! its last, because the optimizer may run on each rank as soon as it is done. With the paper's T_F, T_B, T_W this yields
//! its computed bubble rates to within 0.002 (`tests/schedule/zero_bubble.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rayon::prelude::*;

use super::super::{Action, Batching, Costs, Kind, Lists, Placement, Schedule, ScheduleError, Shape};
use super::entry::{Entry, Generate, counts, one_stage};
use crate::units::Time;

/// Searched in 1F1B's memory.
pub const ZB_1P: Entry = Entry {
    name: "ZB-1p",
    about: "searched: zero bubble in 1F1B's memory (equal costs, half an activation kept for weights)",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: |shape| searchable("ZB-1p", shape),
    generate: Generate::Whole(|shape| equal_costs(shape, 1)),
};

/// Searched in twice 1F1B's memory.
pub const ZB_2P: Entry = Entry {
    name: "ZB-2p",
    about: "searched: zero bubble in twice 1F1B's memory (equal costs, half an activation kept for weights)",
    placement: Placement::Loop,
    batching: |_| Batching::Eager,
    check: |shape| searchable("ZB-2p", shape),
    generate: Generate::Whole(|shape| equal_costs(shape, 2)),
};

/// Micro-batches × ranks that are searched: each is three turns, 25 times over, in some seconds for all.
const MOST: u64 = 1 << 20;

/// For schedules that are searched.
fn searchable(schedule: &'static str, shape: Shape) -> Result<(), ScheduleError> {
    one_stage(schedule, shape)?;
    let (ranks, microbatches) = (u64::from(shape.ranks), u64::from(shape.microbatches));
    if ranks * microbatches <= MOST {
        return Ok(());
    }
    Err(ScheduleError::Search { schedule, ranks, microbatches, most: MOST / ranks })
}

/// What one micro-batch keeps on a rank, and how much a rank may keep. Any unit will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// From a forward to the gradient of its input.
    pub activation: u64,
    /// From there to the gradient of the weights.
    pub for_weights: u64,
    /// What a rank may keep at once.
    pub limit: u64,
}

fn equal_costs(shape: Shape, times: u64) -> Lists {
    let one = Time(1);
    let memory = Memory { activation: 2, for_weights: 1, limit: 2 * times * u64::from(shape.ranks) };
    best(shape, &Costs::uniform(shape.ranks as usize, [one, one, one], Time(0)), memory)
}

/// The best schedule found for costs and memory. `name` is what reports call it.
pub fn search(name: &str, shape: Shape, costs: &Costs, memory: Memory) -> Result<Schedule, ScheduleError> {
    counts(shape)?;
    searchable("a searched schedule", shape)?;
    if memory.limit < memory.activation || memory.for_weights > memory.activation {
        let problem = format!(
            "a rank may keep {} but one micro-batch takes {} and {} of it for weights: raise the limit",
            memory.limit, memory.activation, memory.for_weights
        );
        return Err(ScheduleError::Lowering { problem });
    }
    Schedule::new(name.to_owned(), best(shape, costs, memory), Batching::Eager)
}

/// The best of 25 attempts; of equals the first.
fn best(shape: Shape, costs: &Costs, memory: Memory) -> Lists {
    let tried = (0..25_u64).into_par_iter().map(|number| {
        let (span, ranks) = attempt(shape, costs, memory, Patience { weight: number / 5, forward: number % 5 });
        ((span, number), ranks)
    });
    let (_, ranks) = tried.min_by_key(|(key, _)| *key).expect("25 attempts");
    Lists::from_ranks(&ranks)
}

/// For what arrives within how many quarters of a turn a rank waits, rather than starting that turn.
#[derive(Clone, Copy)]
struct Patience {
    /// Before a gradient of weights.
    weight: u64,
    /// Before a forward, for a gradient.
    forward: u64,
}

/// One rank: how far it is and what it keeps.
#[derive(Clone, Copy, Default)]
struct Rank {
    forwards: u32,
    inputs: u32,
    weights: u32,
    kept: u64,
    first: Option<u64>,
    free: u64,
    /// Whether it found nothing to do: what arrives wakes it. Else it looks when it is free.
    idle: bool,
}

/// When a micro-batch can start: now or earlier, later, or not known yet.
const UNKNOWN: u64 = u64::MAX;

fn attempt(shape: Shape, costs: &Costs, memory: Memory, patience: Patience) -> (u64, Vec<Vec<Action>>) {
    let (ranks, count) = (shape.ranks as usize, shape.microbatches);
    let cell = |rank: usize, microbatch: u32| rank * count as usize + microbatch as usize;
    let mut forward_end = vec![UNKNOWN; ranks * count as usize];
    let mut input_end = forward_end.clone();
    let mut lists = vec![Vec::with_capacity(3 * count as usize); ranks];
    let mut states = vec![Rank::default(); ranks];
    let mut wake: BinaryHeap<Reverse<(u64, usize)>> = (0..ranks).map(|rank| Reverse((0, rank))).collect();
    while let Some(Reverse((now, rank))) = wake.pop() {
        let state = &mut states[rank];
        if now < state.free {
            continue;
        }
        state.idle = true;
        let input = match () {
            () if state.inputs >= state.forwards => UNKNOWN,
            () if rank + 1 == ranks => forward_end[cell(rank, state.inputs)],
            () => input_end[cell(rank + 1, state.inputs)].saturating_add(costs.hop[rank].0),
        };
        let forward = match () {
            () if state.forwards == count || state.kept + memory.activation > memory.limit => UNKNOWN,
            () if rank == 0 => 0,
            () => forward_end[cell(rank - 1, state.forwards)].saturating_add(costs.hop[rank - 1].0),
        };
        let (t_forward, t_weight) = (costs.forward[rank].0, costs.weight[rank].0);
        let soon = |arrival: u64, turn: u64, quarters: u64| arrival < now + turn * quarters / 4;
        let kind = if input <= now {
            Kind::Input
        } else if forward <= now && !soon(input, t_forward, patience.forward) {
            Kind::Forward
        } else if state.weights < state.inputs && !soon(input.min(forward), t_weight, patience.weight) {
            Kind::Weight
        } else {
            let next = [input, forward].into_iter().filter(|&at| now < at && at < UNKNOWN).min();
            wake.extend(next.map(|at| Reverse((at, rank))));
            continue;
        };
        let (turn, done) = match kind {
            Kind::Forward => (t_forward, &mut state.forwards),
            Kind::Input => (costs.input[rank].0, &mut state.inputs),
            _ => (t_weight, &mut state.weights),
        };
        let microbatch = *done;
        *done += 1;
        state.first.get_or_insert(now);
        (state.free, state.idle) = (now + turn, false);
        let end = state.free;
        lists[rank].push(Action::new(u16::try_from(rank).expect("at most 65,536 ranks"), kind, microbatch));
        wake.push(Reverse((end, rank)));
        let woken = match kind {
            Kind::Forward => {
                state.kept += memory.activation;
                forward_end[cell(rank, microbatch)] = end;
                (rank + 1 < ranks).then(|| (end + costs.hop[rank].0, rank + 1))
            }
            Kind::Input => {
                state.kept -= memory.activation - memory.for_weights;
                input_end[cell(rank, microbatch)] = end;
                rank.checked_sub(1).map(|before| (end + costs.hop[before].0, before))
            }
            _ => {
                state.kept -= memory.for_weights;
                None
            }
        };
        wake.extend(woken.filter(|&(_, other)| states[other].idle).map(Reverse));
    }
    let span = states.iter().map(|state| state.free - state.first.unwrap_or(0)).max().unwrap_or(0);
    (span, lists)
}
