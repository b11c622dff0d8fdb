//! Where each rank's time goes: what ran, or why nothing did.
//!
//! While compute runs, time is compute. Otherwise the question is what the default stream waits for, and the answer is
//! found by following it: the stream waits for an event, that for what runs on the stream it was recorded on, and so on
//! until something runs, or waits for other ranks, or the host is behind. So with tensor and data parallelism side by
//! side, time lost is blamed on the collective whose result is awaited and not on one in the background.

use crate::units::Time;

use super::parts::{Doing, Rank};
use super::plan::StreamOp;
use super::spent::{BUBBLE, COMPUTE, EXPOSED, HOST, Spent, Totals, WAITING};
use super::state::Engine;

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
    #[inline]
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
    #[inline]
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
    #[inline]
    fn runs(&self, actor: u32) -> bool {
        match self.actors[actor as usize].doing {
            Doing::Kernel => true,
            Doing::Meeting { meeting } => self.is_running(meeting),
            Doing::Exchange => self.exchanges.batches[actor as usize].running > 0,
            _ => false,
        }
    }

    #[inline]
    fn lowest_running(&self, rank: u32) -> u32 {
        let running = (rank * self.width..self.host(rank)).find(|&actor| self.runs(actor));
        running.expect("communication that runs, runs on a stream")
    }

    /// Whether the streams have passed all that was issued to them.
    #[inline]
    fn has_passed_all(&self, rank: u32) -> bool {
        (rank * self.width..self.host(rank)).all(|actor| self.ready[actor as usize].is_empty())
    }

    /// Whether a stream waits for other ranks.
    #[inline]
    fn waits_for_ranks(&self, rank: u32) -> bool {
        let meets = |actor: u32| matches!(self.actors[actor as usize].doing, Doing::Meeting { .. } | Doing::Exchange);
        (rank * self.width..self.host(rank)).any(|actor| meets(actor) && !self.runs(actor))
    }

    /// Adds exposed communication to what runs on a stream of a watched rank.
    #[inline]
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
    pub(super) fn spend_again(&mut self, before: &Totals, times: u64, by: u64) {
        let now = self.spent_so_far();
        for (rank, (before, now)) in self.ranks.iter_mut().zip(before.spent.iter().zip(&now.spent)) {
            for (part, (before, now)) in rank.spent.parts.iter_mut().zip(before.parts.iter().zip(now.parts)) {
                *part += (now - before) * times;
            }
            rank.spent.until += by;
        }
        for (exposed, (before, now)) in self.exposed.iter_mut().zip(before.exposed.iter().zip(&now.exposed)) {
            for (sum, now) in exposed.pairs(now) {
                sum.iter_mut().zip(now).for_each(|(sum, &now)| *sum += Time(now.0 * times));
            }
            for (sum, before) in exposed.pairs(before) {
                sum.iter_mut().zip(before).for_each(|(sum, &before)| *sum = *sum - Time(before.0 * times));
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
}
