//! A step that repeats the one before is not run again.
//!
//! What happens next depends on the state of the run and on nothing else. So the state is looked at when the first rank's
//! default stream comes to a few early places of the first step, and again at the same places of the second: where the two
//! are equal but for the time, all later steps are this one over again. Only the tail of the last is another, as no step
//! follows it. It is run from a state that was kept late in the first step, when nothing of the second had been issued yet.
//! What comes out is what running all steps would have found, to the picosecond.

use crate::network::LEVELS;
use crate::program::Direction;
use crate::units::Time;

use super::findings::Last;
use super::flights::{Batch, Flight};
use super::parts::{Doing, Event, Meeting, NONE, Passed, Rank, Running};
use super::plan::StreamOp;
use super::state::Engine;
use super::watch::{EARLY, Found, Kept, LATE, Origin, Period};
use super::{EngineError, Timeline};

impl Engine<'_> {
    /// Whether the first rank's default stream has come to a place to look at.
    #[inline]
    pub(super) fn is_checkpoint(&self) -> bool {
        let Some(&place) = self.watch.places.get(self.watch.next) else { return false };
        (self.actors[0].step, self.actors[0].at) >= place
    }

    /// Looks at the state; returns the step that all later ones repeat, if it is known.
    pub(super) fn check(&mut self) -> Option<Period> {
        let here = (self.actors[0].step, self.actors[0].at);
        let mut index = self.watch.next;
        while self.watch.places.get(index + 1).is_some_and(|&place| here >= place) {
            index += 1;
        }
        self.watch.next = index + 1;
        if here.0 > 0 && self.watch.kept.is_none() {
            self.watch.stop();
            return None;
        }
        match index.checked_sub(EARLY.len()) {
            None => self.note(index),
            Some(late) if late < LATE.len() => self.keep(),
            Some(late) => {
                let early = late - LATE.len();
                let state = self.state(Origin { step: 1, rounds: false });
                let found = self.watch.found.get_mut(early).and_then(Option::take)?;
                // Of further rounds, each step has as many as every other.
                let alike = self.rounds.added - found.added == u32::from(self.rounds.further > 0);
                return (alike && found.state == state).then_some(Period(found));
            }
        }
        None
    }

    /// Notes the state at an early place of the first step.
    fn note(&mut self, index: usize) {
        let totals = self.spent_so_far();
        let busy = self.busy[..self.plans.len()].to_vec();
        let found = Found {
            now: self.now,
            state: self.state(Origin::default()),
            totals,
            busy,
            marks: self.marks.clone(),
            added: self.rounds.added,
        };
        self.watch.found.resize_with(index, || None);
        self.watch.found.push(Some(found));
    }

    /// Keeps the state, if all are in the first step, and all its rounds were run.
    fn keep(&mut self) {
        let classes: Vec<u32> = self.ranks.iter().map(|rank| rank.class).collect();
        let lacks = self.rounds.wanted(0);
        if lacks || self.actors.iter().any(|actor| actor.step > 0) || !self.exchanges.is_even(&classes, &self.plans) {
            return;
        }
        self.watch.kept = Some(Kept {
            now: self.now,
            ranks: self.ranks.clone(),
            actors: self.actors.clone(),
            ready: self.ready.clone(),
            meetings: self.meetings.clone(),
            exchanges: self.exchanges.clone(),
            seen: self.seen.clone(),
            waiter: self.waiter.clone(),
            queue: self.queue.clone(),
            open: self.open[0],
            busy: self.busy[..self.plans.len()].to_vec(),
            exposed: self.exposed.clone(),
        });
    }

    /// How many slots of a rank have been seen without a gap, if that is what its slots are counted from.
    pub(super) fn all_seen(&self, rank: usize, Origin { step, rounds }: Origin) -> u32 {
        let seen = &self.seen[rank * self.slots as usize..][..self.slots as usize];
        if rounds { seen.iter().take_while(|&&seen| seen > step).count() as u32 } else { 0 }
    }

    /// All that decides on what happens from now on, counted from now and from an origin. What follows from the rest is left
    /// out: of the queue, all but events that are about to become visible; which message of a channel an end is.
    pub(super) fn state(&self, origin: Origin) -> Vec<u64> {
        let (now, step) = (self.now, origin.step);
        let seen: Vec<u32> = (0..self.ranks.len()).map(|rank| self.all_seen(rank, origin)).collect();
        let mut state = vec![];
        for (index, actor) in self.actors.iter().enumerate() {
            let host = index as u32 % self.width == self.width - 1;
            // A host acts ahead of time.
            let ahead = if host { actor.reached.saturating_sub(now) } else { 0 };
            let at = if origin.rounds { 0 } else { actor.at };
            state.extend([at, actor.step.wrapping_sub(step), actor.queued].map(u64::from));
            match actor.doing {
                Doing::Idle => state.extend([0, ahead]),
                Doing::Event { slot } => state.extend([1, u64::from(slot - seen[index / self.width as usize]), ahead]),
                Doing::Kernel => {
                    state.extend([2, now - actor.reached]);
                    self.add_running(&mut state, actor.running);
                }
                Doing::Meeting { meeting } => state.extend([3, u64::from(meeting), now - actor.reached]),
                Doing::Exchange => {
                    state.extend([4, now - actor.reached]);
                    self.add_exchange(&mut state, index as u32);
                }
                Doing::Room { stream } => state.extend([5, u64::from(stream), ahead]),
                Doing::Done => state.push(6),
            }
            let ready = &self.ready[index];
            state.push(ready.len() as u64);
            state.extend(ready.iter().map(|due| due.saturating_sub(now)));
        }
        for (index, meeting) in self.meetings.iter().enumerate().filter(|(_, meeting)| meeting.arrived > 0) {
            let Meeting { arrived, opener, comm, work, use_of, outer, start, running, .. } = *meeting;
            state.extend([index as u64, u64::from(arrived), u64::from(opener), u64::from(comm), work]);
            state.extend(use_of.map(f64::to_bits));
            state.extend(outer.iter().filter(|_| !self.uplinks.is_empty()).map(|part| part.to_bits()));
            if self.is_running(index as u32) {
                state.push(now - start);
                self.add_running(&mut state, running);
            }
        }
        for (index, rank) in self.ranks.iter().enumerate() {
            let Rank { slowed, filling, comms, spent, .. } = rank;
            state.extend([u32::from(*slowed), *filling, *comms, spent.compute, spent.communication].map(u64::from));
            let slots = self.plans[rank.class as usize].slots.len();
            // Slots that have seen as many lie side by side: where each such run begins.
            let all = seen[index] as usize;
            let own = &self.seen[index * self.slots as usize..][all..slots];
            let mut last = None;
            for (slot, &count) in own.iter().enumerate().filter(|&(_, &count)| last.replace(count) != Some(count)) {
                state.extend([slot as u64, u64::from(count.wrapping_sub(step))]);
            }
            state.push(u64::MAX);
        }
        let visible = |(time, event): (u64, &Event)| match *event {
            Event::Visible { rank, slot } => Some([time - now, u64::from(rank), u64::from(slot - seen[rank as usize])]),
            _ => None,
        };
        let mut visible: Vec<[u64; 3]> = self.queue.iter().filter_map(visible).collect();
        visible.sort_unstable();
        state.extend(visible.into_iter().flatten());
        state
    }

    fn add_running(&self, state: &mut Vec<u64>, running: Running) {
        state.extend([running.work, self.now - running.since, running.pace.bits()]);
    }

    fn add_exchange(&self, state: &mut Vec<u64>, actor: u32) {
        let class = self.ranks[(actor / self.width) as usize].class as usize;
        let StreamOp::Exchange { issue, .. } = self.plans[class].ops[self.actors[actor as usize].at as usize] else {
            unreachable!("the stream is busy with an exchange");
        };
        let Batch { open, running, start, busy, since } = self.exchanges.batches[actor as usize];
        let since = if running > 0 { self.now - since } else { 0 };
        state.extend([
            u64::from(open),
            u64::from(running),
            start.map_or(u64::MAX, |start| self.now - start),
            busy,
            since,
        ]);
        let first = self.exchanges.of(actor).start;
        for index in first..first + self.plans[class].issues[issue as usize].count as usize {
            let Flight { mate, direction, ended, use_of, outer, running, .. } = self.exchanges.flights[index];
            state.extend([u64::from(mate), u64::from(ended)]);
            if mate != NONE && direction == Direction::Send {
                let use_of: [f64; LEVELS] = use_of;
                state.extend(use_of.map(f64::to_bits));
                state.extend(outer.iter().filter(|_| !self.uplinks.is_empty()).map(|part| part.to_bits()));
                self.add_running(state, running);
            }
        }
    }

    /// Times of marks in steps that have not been run, but for the last: one period after the step before.
    fn repeat_marks(&mut self, length: Time) {
        for class in 0..self.plans.len() as u32 {
            for step in 1..self.options.steps {
                for mark in 0..self.mark_count {
                    let [before, at] = [step - 1, step].map(|step| self.mark_at(class, step, mark));
                    let (host, device) = self.marks[before];
                    let later = |time: Option<Time>| time.map(|time| time + length);
                    let known = self.marks[at];
                    self.marks[at] = (known.0.or(later(host)), known.1.or(later(device)));
                }
            }
        }
    }

    /// Times of marks in the last step: those that the first step passed after the period's beginning are where its tail says,
    /// which was run anew; what the first step had passed is `known`.
    fn end_marks(&mut self, from: &[Passed], known: &[Passed], length: Time) {
        let steps = self.options.steps;
        for class in 0..self.plans.len() as u32 {
            for mark in 0..self.mark_count {
                let [first, last] = [0, steps - 1].map(|step| self.mark_at(class, step, mark));
                let tail = |time: Option<Time>| time.map(|time| Time(time.0 + length.0 * u64::from(steps - 1)));
                let (host, device) = self.marks[first];
                if from[first].0.is_none() {
                    self.marks[last].0 = tail(host);
                }
                if from[first].1.is_none() {
                    self.marks[last].1 = tail(device);
                }
                self.marks[first] = known[first];
            }
        }
    }

    /// The findings of a run whose steps all repeat one: its last step, with the tail that has no step behind it.
    pub(super) fn run_last(mut self, Period(from): Period) -> Result<Timeline, EngineError> {
        let length = self.now - from.now;
        let here = self.spent_so_far();
        let Some(kept) = self.watch.kept.take() else { unreachable!("a period is told only where a state is kept") };
        let (steps, classes) = (self.options.steps as usize, self.plans.len());
        let (first_end, first_totals) = (self.ends[0], self.totals.swap_remove(0));
        self.repeat_marks(Time(length));
        let known = self.marks.clone();
        let second = self.busy[classes..2 * classes].to_vec();

        self.steps = 1;
        self.now = kept.now;
        (self.ranks, self.actors, self.ready) = (kept.ranks, kept.actors, kept.ready);
        (self.meetings, self.exchanges, self.queue) = (kept.meetings, kept.exchanges, kept.queue);
        (self.seen, self.waiter, self.exposed) = (kept.seen, kept.waiter, kept.exposed);
        (self.open, self.ends, self.totals) = (vec![kept.open], vec![0], vec![]);
        self.busy = kept.busy;
        while self.open[0] > 0 {
            self.instant()?;
        }

        // What the last step does up to the place where the period begins, the second has done; what it does behind, the first.
        let mut busy = std::mem::take(&mut self.busy);
        for ((sum, before), second) in busy.iter_mut().zip(&from.busy).zip(&second) {
            sum.add(before, second, 1);
        }
        let after = |steps: u64| length * steps;
        let mut ends: Vec<u64> = (0..steps as u64 - 1).map(|step| first_end + after(step)).collect();
        ends.push(self.ends[0] + after(steps as u64 - 1));
        self.end_marks(&from.marks, &known, Time(length));
        let marks = std::mem::take(&mut self.marks);
        let end = self.totals.swap_remove(0).plus(&from.totals, &here);
        Ok(self.report(Last { ends, before: Some(first_totals), end, busy, marks }))
    }
}
