//! Where each rank's time goes: what ran, or why nothing did.
//!
//! While compute runs, time is compute. Otherwise the question is what the default stream waits for, and the answer is
//! found by following it: the stream waits for an event, that for what runs on the stream it was recorded on, and so on
//! until something runs, or waits for other ranks, or the host is behind. So with tensor and data parallelism side by
//! side, time lost is blamed on the collective whose result is awaited and not on one in the background.

use crate::program::Program;
use crate::units::Time;

use super::plan::{Plan, StreamOp};
use super::state::{Doing, Engine, Passed, Rank};
use super::{Breakdown, Busy, MarkTime, Span, Timeline};

/// The time a rank has spent, and what decides on what it is spending it now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// By part, an index of those below \[ps\].
    parts: [u64; 5],
    /// Accounted up to here.
    until: u64,
    /// Running kernels of any pass but communication.
    pub(super) compute: u32,
    /// Running kernels of the communication pass, collectives and messages.
    pub(super) communication: u32,
}

const COMPUTE: usize = 0;
const EXPOSED: usize = 1;
const BUBBLE: usize = 2;
const HOST: usize = 3;
const WAITING: usize = 4;

impl Spent {
    /// What was spent since `before`.
    fn since(&self, before: &Spent) -> Breakdown {
        let part = |index: usize| Time(self.parts[index] - before.parts[index]);
        Breakdown {
            compute: part(COMPUTE),
            exposed_communication: part(EXPOSED),
            bubble: part(BUBBLE),
            host_bound: part(HOST),
            waiting: part(WAITING),
        }
    }
}

/// Exposed communication by what is blamed for it \[ps\].
#[derive(Clone, Debug)]
pub(super) struct Exposed {
    pub(super) kernel: Vec<Time>,
    pub(super) comm: Vec<Time>,
    pub(super) exchange: Vec<Time>,
}

impl Exposed {
    /// Nothing yet.
    pub(super) fn of(program: &Program) -> Exposed {
        Exposed {
            kernel: vec![Time::ZERO; program.kernels.len()],
            comm: vec![Time::ZERO; program.comms.len()],
            exchange: vec![Time::ZERO; program.exchanges.len()],
        }
    }

    /// Each list with its partner.
    fn pairs<'a>(&'a mut self, other: &'a Exposed) -> [(&'a mut Vec<Time>, &'a Vec<Time>); 3] {
        let Exposed { kernel, comm, exchange } = self;
        [(kernel, &other.kernel), (comm, &other.comm), (exchange, &other.exchange)]
    }
}

/// All that has been spent up to some moment: by rank, and what is blamed for exposed communication, by class.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    spent: Vec<Spent>,
    exposed: Vec<Exposed>,
}

impl Totals {
    /// With what was spent between two other moments.
    pub(super) fn plus(mut self, from: &Totals, to: &Totals) -> Totals {
        for (sum, (from, to)) in self.spent.iter_mut().zip(from.spent.iter().zip(&to.spent)) {
            for (part, (from, to)) in sum.parts.iter_mut().zip(from.parts.iter().zip(to.parts)) {
                *part += to - from;
            }
        }
        for (sum, (from, to)) in self.exposed.iter_mut().zip(from.exposed.iter().zip(&to.exposed)) {
            for (sum, more) in sum.pairs(to) {
                sum.iter_mut().zip(more).for_each(|(sum, &more)| *sum += more);
            }
            sum.less(from);
        }
        self
    }
}

impl Exposed {
    /// Without what there was before.
    fn less(&mut self, before: &Exposed) {
        for (sum, less) in self.pairs(before) {
            sum.iter_mut().zip(less).for_each(|(sum, &less)| *sum = *sum - less);
        }
    }
}

/// What the default stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// What runs on a stream.
    Runs { actor: u32 },
    /// Other ranks.
    Ranks,
    /// The host, which is busy.
    Host,
    /// An event that has happened and is not yet visible.
    Latency,
    /// Nothing: it has ended the run.
    Done,
}

impl Engine<'_> {
    /// Accounts for a rank's time up to now; to be called before anything changes that decides on where it goes.
    #[inline]
    pub(super) fn account(&mut self, rank: u32) {
        let (now, spent) = (self.now, &mut self.ranks[rank as usize].spent);
        if spent.until == now {
            return;
        }
        if spent.compute > 0 {
            spent.parts[COMPUTE] += now - std::mem::replace(&mut spent.until, now);
        } else {
            self.account_without_compute(rank);
        }
    }

    /// Accounts for time without compute; exposed communication is blamed on what causes it.
    #[inline(never)]
    fn account_without_compute(&mut self, rank: u32) {
        let spent = &mut self.ranks[rank as usize].spent;
        let elapsed = self.now - std::mem::replace(&mut spent.until, self.now);
        let part = self.without_compute(rank, elapsed);
        self.ranks[rank as usize].spent.parts[part] += elapsed;
    }

    /// The part that time without compute belongs to.
    fn without_compute(&mut self, rank: u32, elapsed: u64) -> usize {
        let Spent { communication, .. } = self.ranks[rank as usize].spent;
        let actor = match self.cause(rank) {
            Cause::Runs { actor } => actor,
            Cause::Ranks => return BUBBLE,
            _ if communication > 0 => self.lowest_running(rank),
            Cause::Host => return HOST,
            Cause::Done if self.has_passed_all(rank) || self.waits_for_ranks(rank) => return BUBBLE,
            Cause::Done | Cause::Latency => return WAITING,
        };
        if self.ranks[rank as usize].watched {
            self.blame(actor, elapsed);
        }
        EXPOSED
    }

    /// What the default stream of a rank waits for. Each link of the chain was issued before the one that waits for it.
    fn cause(&self, rank: u32) -> Cause {
        let (first, host) = (rank * self.width, self.host(rank));
        let plan = &self.plans[self.ranks[rank as usize].class as usize];
        let mut actor = first;
        loop {
            let state = &self.actors[actor as usize];
            match state.doing {
                Doing::Done => return Cause::Done,
                Doing::Idle if actor == host => return Cause::Host,
                _ if actor == host && state.reached >= self.now => return Cause::Host,
                Doing::Idle => actor = host,
                Doing::Room { stream } => actor = first + u32::from(stream),
                Doing::Event { slot } => {
                    let slot = plan.slots[slot as usize];
                    let recorder = first + u32::from(slot.stream);
                    let other = &self.actors[recorder as usize];
                    if (other.step, other.at) > (state.step, slot.at) {
                        return Cause::Latency;
                    }
                    actor = recorder;
                }
                Doing::Kernel | Doing::Meeting { .. } | Doing::Exchange => {
                    return if self.runs(actor) { Cause::Runs { actor } } else { Cause::Ranks };
                }
            }
        }
    }

    /// Whether anything runs on a stream.
    fn runs(&self, actor: u32) -> bool {
        match self.actors[actor as usize].doing {
            Doing::Kernel => true,
            Doing::Meeting { meeting } => self.is_running(meeting),
            Doing::Exchange => self.exchanges.batches[actor as usize].running > 0,
            _ => false,
        }
    }

    fn lowest_running(&self, rank: u32) -> u32 {
        let running = (rank * self.width..self.host(rank)).find(|&actor| self.runs(actor));
        running.expect("communication that runs, runs on a stream")
    }

    /// Whether the streams have passed all that was issued to them.
    fn has_passed_all(&self, rank: u32) -> bool {
        (rank * self.width..self.host(rank)).all(|actor| self.ready[actor as usize].is_empty())
    }

    /// Whether a stream waits for other ranks.
    fn waits_for_ranks(&self, rank: u32) -> bool {
        let meets = |actor: u32| matches!(self.actors[actor as usize].doing, Doing::Meeting { .. } | Doing::Exchange);
        (rank * self.width..self.host(rank)).any(|actor| meets(actor) && !self.runs(actor))
    }

    /// Adds exposed communication to what runs on a stream of a watched rank.
    fn blame(&mut self, actor: u32, elapsed: u64) {
        let class = self.ranks[(actor / self.width) as usize].class as usize;
        let (plan, exposed) = (&self.plans[class], &mut self.exposed[class]);
        let part = match plan.ops[self.actors[actor as usize].at as usize] {
            StreamOp::Kernel { kernel, .. } => &mut exposed.kernel[kernel as usize],
            StreamOp::Comm { comm, .. } => &mut exposed.comm[comm as usize],
            StreamOp::Exchange { issue, .. } => &mut exposed.exchange[plan.issues[issue as usize].exchange as usize],
            _ => unreachable!("only kernels, collectives and exchanges run"),
        };
        *part += Time(elapsed);
    }

    /// One actor has ended a step; closes the step when it was the last.
    pub(super) fn end_step(&mut self, step: u32) {
        let step = step as usize;
        self.open[step] -= 1;
        if self.open[step] > 0 {
            return;
        }
        self.ends[step] = self.now;
        let totals = self.spent_so_far();
        self.totals.push(totals);
    }

    /// All that has been spent up to now.
    pub(super) fn spent_so_far(&mut self) -> Totals {
        (0..self.ranks.len() as u32).for_each(|rank| self.account(rank));
        Totals { spent: self.ranks.iter().map(|rank| rank.spent).collect(), exposed: self.exposed.clone() }
    }

    /// Spends over again, so many times, all that was spent since `before`, up to a time that is `by` later.
    pub(super) fn spend_again(&mut self, before: &Totals, times: u32, by: u64) {
        let now = self.spent_so_far();
        for (rank, (before, now)) in self.ranks.iter_mut().zip(before.spent.iter().zip(&now.spent)) {
            for (part, (before, now)) in rank.spent.parts.iter_mut().zip(before.parts.iter().zip(now.parts)) {
                *part += (now - before) * u64::from(times);
            }
            rank.spent.until += by;
        }
        for (exposed, (before, now)) in self.exposed.iter_mut().zip(before.exposed.iter().zip(&now.exposed)) {
            for (sum, now) in exposed.pairs(now) {
                sum.iter_mut().zip(now).for_each(|(sum, &now)| *sum += Time(now.0 * u64::from(times)));
            }
            for (sum, before) in exposed.pairs(before) {
                sum.iter_mut().zip(before).for_each(|(sum, &before)| *sum = *sum - Time(before.0 * u64::from(times)));
            }
        }
    }

    /// Where a mark's times are kept, if its rank is watched.
    pub(super) fn mark_slot(&self, rank: u32, step: u32, mark: u32) -> Option<usize> {
        let Rank { class, watched, .. } = self.ranks[rank as usize];
        watched.then(|| self.mark_at(class, step, mark))
    }

    /// Where a mark's times in a step of a class are kept.
    pub(super) fn mark_at(&self, class: u32, step: u32, mark: u32) -> usize {
        ((class * self.options.steps + step) * self.mark_count + mark) as usize
    }

    /// The findings of a run of all steps.
    pub(super) fn timeline(mut self) -> Timeline {
        let (end, before) = (self.totals.pop(), self.totals.pop());
        let last = Last {
            ends: std::mem::take(&mut self.ends),
            busy: self.busy.split_off(self.busy_at(0, self.options.steps - 1)),
            marks: std::mem::take(&mut self.marks),
            before,
            end: end.expect("the last step has ended"),
        };
        self.report(last)
    }

    /// The findings of a run.
    pub(super) fn report(mut self, last: Last) -> Timeline {
        let Last { ends, before, end, mut busy, marks } = last;
        let begin = if ends.len() > 1 { ends[ends.len() - 2] } else { 0 };
        self.spans.sort_by_key(|&Span { rank, stream, start, end, .. }| (rank, stream, start, end));
        let nothing = Spent::default();
        let since =
            |(rank, spent): (usize, &Spent)| spent.since(before.as_ref().map_or(&nothing, |all| &all.spent[rank]));
        let breakdown = end.spent.iter().enumerate().map(since).collect();
        for (class, (busy, mut exposed)) in busy.iter_mut().zip(end.exposed).enumerate() {
            if let Some(before) = &before {
                exposed.less(&before.exposed[class]);
            }
            let Exposed { kernel, comm, exchange } = exposed;
            (busy.kernel_exposed, busy.comm_exposed, busy.exchange_exposed) = (kernel, comm, exchange);
        }
        let (steps, count) = (self.options.steps, self.mark_count);
        let passed = marks.iter().enumerate().filter_map(|(index, &(host, device))| {
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
            step: Time(ends[ends.len() - 1] - begin),
            ends: ends.iter().map(|&end| Time(end)).collect(),
            ranks: self.cast.ranks,
            breakdown,
            marks: passed.collect(),
            busy,
            spans: self.spans,
            events: self.events,
        }
    }
}

/// What a run found, of which the last step is reported.
pub(super) struct Last {
    /// The end of each step \[ps\].
    pub(super) ends: Vec<u64>,
    /// What had been spent when the last step began; none, if it is the first.
    pub(super) before: Option<Totals>,
    /// What had been spent when it ended.
    pub(super) end: Totals,
    /// Busy times of its parts, by class.
    pub(super) busy: Vec<Busy>,
    /// Times of all marks, by class and step.
    pub(super) marks: Vec<Passed>,
}
