//! Where each rank's time goes: what ran, or why nothing did.

use crate::units::Time;

use super::plan::{Plan, StreamOp};
use super::state::{Doing, Engine};
use super::{Breakdown, MarkTime, Span, Timeline};

/// The time a rank has spent, and what decides on what it is spending it now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Compute, exposed communication, host-bound, waiting \[ps\].
    parts: [u64; 4],
    /// Accounted up to here.
    until: u64,
    /// Running kernels of any pass but communication.
    pub(super) compute: u32,
    /// Running kernels of the communication pass, and collectives.
    pub(super) communication: u32,
    /// Streams with something issued and not passed.
    pub(super) backlog: u32,
}

/// The index of exposed communication in the parts.
const EXPOSED: usize = 1;

impl Spent {
    /// Accounts for the time up to `now`; returns the part it went to, and how much it was.
    fn account(&mut self, now: u64) -> (usize, u64) {
        let part = match self {
            Spent { compute: 1.., .. } => 0,
            Spent { communication: 1.., .. } => EXPOSED,
            Spent { backlog: 0, .. } => 2,
            _ => 3,
        };
        let elapsed = now - std::mem::replace(&mut self.until, now);
        self.parts[part] += elapsed;
        (part, elapsed)
    }

    /// What was spent since `before`.
    fn since(&self, before: &Spent) -> Breakdown {
        let part = |index: usize| Time(self.parts[index] - before.parts[index]);
        Breakdown { compute: part(0), exposed_communication: part(1), host_bound: part(2), waiting: part(3) }
    }
}

impl Engine<'_> {
    /// Accounts for a rank's time up to now; to be called before anything changes that decides on where it goes.
    pub(super) fn account(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if state.spent.until < self.now {
            let (part, elapsed) = state.spent.account(self.now);
            if part == EXPOSED && state.watched {
                self.blame(rank, elapsed);
            }
        }
    }

    /// Adds exposed communication to what caused it: what runs on the first stream on which anything runs.
    fn blame(&mut self, rank: u32, elapsed: u64) {
        let class = self.ranks[rank as usize].class as usize;
        for actor in rank * self.width..self.host(rank) {
            let stream = &self.actors[actor as usize];
            let runs = match stream.doing {
                Doing::Kernel => true,
                Doing::Meeting { meeting } => self.is_running(meeting),
                _ => false,
            };
            if runs {
                match self.plans[class].ops[stream.at as usize] {
                    StreamOp::Kernel { kernel, .. } => self.exposed[class].0[kernel as usize] += Time(elapsed),
                    StreamOp::Comm { comm, .. } => self.exposed[class].1[comm as usize] += Time(elapsed),
                    _ => unreachable!("only kernels and collectives run"),
                }
                return;
            }
        }
        unreachable!("exposed communication without anything that runs");
    }

    /// One actor has ended a step; closes the step when it was the last.
    pub(super) fn end_step(&mut self, step: u32) {
        let step = step as usize;
        self.open[step] -= 1;
        if self.open[step] > 0 {
            return;
        }
        self.ends[step] = self.now;
        if step + 2 >= self.ends.len() {
            for rank in 0..self.ranks.len() {
                self.account(rank as u32);
                if step + 1 < self.ends.len() {
                    self.before[rank] = self.ranks[rank].spent;
                }
            }
            if step + 1 < self.ends.len() {
                self.exposed.iter_mut().for_each(|(kernels, comms)| {
                    kernels.fill(Time::ZERO);
                    comms.fill(Time::ZERO);
                });
            }
        }
    }

    /// Where a mark's times are kept, if its rank is watched.
    pub(super) fn mark_slot(&self, rank: u32, step: u32, mark: u32) -> Option<usize> {
        let class = self.ranks[rank as usize].class;
        let index = (class * self.options.steps + step) * self.mark_count + mark;
        self.ranks[rank as usize].watched.then_some(index as usize)
    }

    /// The findings of a finished run.
    pub(super) fn timeline(mut self) -> Timeline {
        let last = self.ends[self.ends.len() - 1];
        let begin = if self.ends.len() > 1 { self.ends[self.ends.len() - 2] } else { 0 };
        self.spans.sort_by_key(|&Span { rank, stream, start, end, .. }| (rank, stream, start, end));
        for (busy, (kernels, comms)) in self.busy.iter_mut().zip(self.exposed) {
            (busy.kernel_exposed, busy.comm_exposed) = (kernels, comms);
        }
        let (steps, count) = (self.options.steps, self.mark_count);
        let passed = self.marks.iter().enumerate().filter_map(|(index, &(host, device))| {
            let index = index as u32;
            let (class, step, mark) = (index / count / steps, index / count % steps, index % count);
            host.map(|host| MarkTime { class, step, mark, host, device })
        });
        let host_times = |(plan, acted): (&Plan, &Vec<u64>)| -> Vec<Time> {
            plan.effects.iter().map(|effect| Time(acted[effect.actions as usize] + effect.paid)).collect()
        };
        let recorded = if self.options.record { self.plans.len() } else { 0 };
        Timeline {
            host_begins: self.acted.iter().take(recorded).map(|acted| Time(acted[0])).collect(),
            host_times: self.plans.iter().zip(&self.acted).take(recorded).map(host_times).collect(),
            step: Time(last - begin),
            ends: self.ends.iter().map(|&end| Time(end)).collect(),
            breakdown: self.ranks.iter().zip(&self.before).map(|(rank, before)| rank.spent.since(before)).collect(),
            marks: passed.collect(),
            busy: self.busy,
            spans: self.spans,
            events: self.events,
        }
    }
}
