//! What a schedule costs at best: when each action starts, who idles, what is in flight.
//!
//! Every rank runs its list in order; a forward waits for the previous stage's, a backward for the next stage's gradient
//! and for its own forward. What crosses ranks arrives a hop later and occupies nobody. The bubble is the share of
//! rank-time without work, 1 − Σ busy / (ranks × makespan). One pass, no queue: a rank runs until it waits, and whoever
//! produces what it waits for wakes it.

use super::{Action, Kind, Schedule, ScheduleError};
use crate::units::Time;

/// How long everything takes, stage by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Forward of one micro-batch.
    pub forward: Vec<Time>,
    /// Whole backward.
    pub backward: Vec<Time>,
    /// Gradients of inputs alone.
    pub input: Vec<Time>,
    /// Gradients of weights alone.
    pub weight: Vec<Time>,
    /// From the end of a stage to the beginning of the next, and back, if on another rank.
    pub hop: Vec<Time>,
}

impl Costs {
    /// The same for all stages; `parts` are forward, gradients of inputs, gradients of weights.
    pub fn uniform(stages: usize, parts: [Time; 3], hop: Time) -> Costs {
        let [forward, input, weight] = parts.map(|part| vec![part; stages]);
        Costs { backward: vec![parts[1] + parts[2]; stages], forward, input, weight, hop: vec![hop; stages] }
    }

    fn of(&self, action: Action) -> Time {
        let stage = action.stage as usize;
        match action.kind {
            Kind::Forward => self.forward[stage],
            Kind::Input => self.input[stage],
            Kind::Weight => self.weight[stage],
            _ => self.backward[stage],
        }
    }
}

/// One rank's part of a timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTime {
    /// When its first action starts.
    pub first: Time,
    /// When its last action ends.
    pub last: Time,
    /// Time at work.
    pub busy: Time,
}

/// When everything happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The start of each action, in the order of the schedule's lists.
    pub start: Vec<Time>,
    /// Its end.
    pub end: Vec<Time>,
    /// Rank by rank.
    pub ranks: Vec<RankTime>,
}

impl Timeline {
    /// When the last rank is done.
    pub fn makespan(&self) -> Time {
        self.ranks.iter().map(|rank| rank.last).max().unwrap_or_default()
    }

    /// The longest time that one rank is under way.
    pub fn longest(&self) -> Time {
        self.ranks.iter().map(|rank| rank.last - rank.first).max().unwrap_or_default()
    }

    /// The share of rank-time without work.
    pub fn bubble(&self) -> f64 {
        let all = self.makespan().0 as f64 * self.ranks.len() as f64;
        let busy: u64 = self.ranks.iter().map(|rank| rank.busy.0).sum();
        if all == 0.0 { 0.0 } else { 1.0 - busy as f64 / all }
    }

    /// The same where no rank waits for another at the end of a step: 1 − the most work of a rank / [`Timeline::longest`].
    pub fn bubble_rate(&self) -> f64 {
        let busy = self.ranks.iter().map(|rank| rank.busy.0).max().unwrap_or_default();
        let longest = self.longest().0;
        if longest == 0 { 0.0 } else { 1.0 - busy as f64 / longest as f64 }
    }
}

/// Not done yet.
const NEVER: Time = Time(u64::MAX);

/// When everything happens, if it ever ends.
pub fn replay(schedule: &Schedule, costs: &Costs) -> Result<Timeline, ScheduleError> {
    let (ranks, actions) = (schedule.ranks(), schedule.lists.all());
    let cells = schedule.stages * schedule.microbatches;
    // Ends of forwards, then of gradients of inputs; and the rank that waits for each, from 1.
    let mut done = vec![NEVER; 2 * cells];
    let mut waiting = vec![0_u32; 2 * cells];
    let mut next: Vec<usize> = (0..ranks).map(|rank| schedule.lists.range(rank).start).collect();
    let mut times = vec![RankTime { first: NEVER, ..RankTime::default() }; ranks];
    let (mut start, mut end) = (vec![Time(0); actions.len()], vec![Time(0); actions.len()]);
    let mut runnable: Vec<usize> = (0..ranks).rev().collect();
    while let Some(rank) = runnable.pop() {
        let last = schedule.lists.range(rank).end;
        let time = &mut times[rank];
        while next[rank] < last {
            let at = next[rank];
            let action = actions[at];
            let mut from = time.last;
            if let Some((cell, hop)) = needs(schedule, costs, action) {
                if done[cell] == NEVER {
                    waiting[cell] = u32::try_from(rank + 1).expect("fewer than 2^32 ranks");
                    break;
                }
                from = from.max(done[cell] + hop);
            }
            let cost = costs.of(action);
            let until = from + cost;
            (start[at], end[at]) = (from, until);
            time.first = time.first.min(from);
            time.last = until;
            time.busy += cost;
            next[rank] += 1;
            if action.kind != Kind::Weight {
                let cell = place(schedule, action.kind != Kind::Forward, action.stage as usize, action.microbatch);
                done[cell] = until;
                let woken = std::mem::take(&mut waiting[cell]) as usize;
                if woken > 0 {
                    runnable.push(woken - 1);
                }
            }
        }
    }
    let stuck: Vec<usize> = (0..ranks).filter(|&rank| next[rank] < schedule.lists.range(rank).end).collect();
    let Some(&first) = stuck.first() else { return Ok(Timeline { start, end, ranks: times }) };
    let waits = stuck.iter().take(4).map(|&rank| {
        let action = actions[next[rank]];
        let neighbour = if action.kind == Kind::Forward { action.stage.wrapping_sub(1) } else { action.stage + 1 };
        format!("rank {rank} waits at {action} for stage {neighbour}")
    });
    let waits = waits.collect::<Vec<_>>().join(", ");
    Err(ScheduleError::Deadlock { waits, rank: first, entry: next[first] - schedule.lists.range(first).start + 1 })
}

/// Where a micro-batch's end is kept.
fn place(schedule: &Schedule, backward: bool, stage: usize, microbatch: u32) -> usize {
    (usize::from(backward) * schedule.stages + stage) * schedule.microbatches + microbatch as usize
}

/// What an action needs of another stage, and how long that takes to arrive. What it needs of its own stage comes before
/// it in the same list.
fn needs(schedule: &Schedule, costs: &Costs, action: Action) -> Option<(usize, Time)> {
    let stage = action.stage as usize;
    let (backward, neighbour, border) = match action.kind {
        Kind::Forward => (false, stage.checked_sub(1)?, stage - 1),
        Kind::Backward | Kind::Input if stage + 1 < schedule.stages => (true, stage + 1, stage),
        _ => return None,
    };
    let hop = if schedule.crosses(border) { costs.hop[border] } else { Time(0) };
    Some((place(schedule, backward, neighbour, action.microbatch), hop))
}

/// The most micro-batches that each rank holds activations of, counting each stage. A split backward lets go of them with
/// its second half, or with its first if `early`.
pub fn in_flight(schedule: &Schedule, early: bool) -> Vec<u32> {
    let peaks = peak_memory(schedule, &vec![[1, u64::from(!early)]; schedule.stages]);
    peaks.into_iter().map(|peak| u32::try_from(peak).expect("fewer than 2^32 activations")).collect()
}

/// The most that each rank holds, in the unit of `kept`: what a micro-batch keeps at each stage from its forward on, and
/// what of it stays between the halves of a split backward.
pub fn peak_memory(schedule: &Schedule, kept: &[[u64; 2]]) -> Vec<u64> {
    let mut peaks = Vec::with_capacity(schedule.ranks());
    for rank in 0..schedule.ranks() {
        let (mut live, mut peak) = (0, 0);
        for action in schedule.lists.rank(rank) {
            let [activation, for_weights] = kept[action.stage as usize];
            match action.kind {
                Kind::Forward => live += activation,
                Kind::Input => live -= activation - for_weights,
                Kind::Weight => live -= for_weights,
                _ => live -= activation,
            }
            peak = peak.max(live);
        }
        peaks.push(peak);
    }
    peaks
}
