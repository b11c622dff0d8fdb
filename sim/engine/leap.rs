//! A round of micro-batches that repeats the one before is not run again.
//!
//! A program may say where rounds begin on its default stream ([`crate::program::Program::rounds`]). That is a hint: here is
//! the proof. At the beginning of a round the state is compared with that at the beginning of the round before. Where the two
//! are equal but for the time and for how far every host and stream has come, and where what all of them find next is what they
//! found in the round before, the next round is that round over again. So is the one behind it, as far as what is found repeats:
//! all these rounds are taken at once. What they did is added as often, all times move by as much, and every host and stream
//! stands where it would stand. What comes out is what running all rounds would have found, to the picosecond.
//!
//! So a step need not be written with all its rounds. Where a round repeats, as many *further* ones may be run as are not written: they
//! do the same, and every host and stream stands where it stood.

use super::parts::{Actor, Doing, Event, NONE};
use super::plan::{Action, HostOp, Plan, StreamOp};
use super::rounds::{Found, Round};
use super::state::Engine;
use super::watch::Origin;
use crate::units::Time;

/// The longest run with further rounds \[ps\]: a sixteenth of what 64 bits hold.
const LONGEST: u64 = 1 << 60;

/// How a round between two equal states repeats.
struct Repeats {
    /// How many more times it is what is found next.
    times: u32,
    /// Whether it is found twice at least, with this place between them or within: more of it would come just here.
    amid: bool,
    /// What grows in each, by rank.
    shifts: Vec<Shift>,
}

/// Numbers of a rank's parts that grow by the same amount in every round.
struct Shift {
    slots: u32,
    /// Of each transfer: messages of its channel.
    turns: Vec<Option<u32>>,
}

impl Plan {
    /// Whether two operations of a stream are the same but for their round.
    fn same_op(&self, one: StreamOp, other: StreamOp, shift: &mut Shift) -> bool {
        match (one, other) {
            (StreamOp::Kernel { .. }, StreamOp::Kernel { .. }) | (StreamOp::Comm { .. }, StreamOp::Comm { .. }) => {
                one == other
            }
            (StreamOp::Exchange { issue: one, scope: from }, StreamOp::Exchange { issue: other, scope: to }) => {
                let [one, other] = [one, other].map(|issue| &self.issues[issue as usize]);
                let legs = (one.first..one.first + one.count).zip(other.first..);
                from == to
                    && (one.exchange, one.count) == (other.exchange, other.count)
                    && legs.into_iter().all(|(one, other)| {
                        let [one, other] = [one, other].map(|leg| &self.legs[leg as usize]);
                        let by = other.turn.wrapping_sub(one.turn);
                        *shift.turns[one.transfer as usize].get_or_insert(by) == by
                    })
            }
            (StreamOp::Record { slot: one, late }, StreamOp::Record { slot: other, late: too }) => {
                one + shift.slots == other && late == too
            }
            (StreamOp::Wait { slot: one, scope: from }, StreamOp::Wait { slot: other, scope: to }) => {
                from == to && one + shift.slots == other
            }
            // A mark is one of a kind, and so is the end of a step.
            _ => false,
        }
    }
}

/// Whether two actions of a host are the same but for their round.
fn same_action(one: &HostOp, other: &HostOp, shift: &Shift) -> bool {
    one.cost == other.cost
        && match (one.action, other.action) {
            (Action::Issue { .. }, Action::Issue { .. }) => one.action == other.action,
            (Action::Wait { slot: one }, Action::Wait { slot: other }) => one + shift.slots == other,
            _ => false,
        }
}

impl Engine<'_> {
    /// Whether the first rank's default stream has come to a place where a round may begin.
    #[inline]
    pub(super) fn is_round(&self) -> bool {
        self.rounds.place.is_some_and(|place| (self.actors[0].step, self.actors[0].at) >= place)
    }

    /// Looks at the state, and takes all rounds at once that are known to repeat the last.
    pub(super) fn look_at_round(&mut self) {
        let Actor { at, step, .. } = self.actors[0];
        if step == self.steps {
            self.rounds.place = None;
            return;
        }
        let begun = self.begins().partition_point(|&place| place <= at);
        self.rounds.place = self.next_round();
        let before = self.rounds.found.take();
        // Where the first rounds do not repeat, fewer and fewer of the later ones are looked at.
        let worth = |round: usize| round < 8 || (round & (round - 1)).min(round & (round + 1)) == 0;
        if begun == 0 || !worth(begun) || self.actors.iter().any(|actor| actor.step != step) {
            return;
        }
        let found = self.find(begun, step);
        let repeats = |before: &Found| (before.step, before.round + 1) == (step, begun) && before.state == found.state;
        if let Some(before) = before.filter(repeats)
            && let Some(repeats) = self.repeats(&before, &found)
        {
            let further = self.further(&before, &found, &repeats);
            // Of rounds that are written it is noted how long each thing takes.
            let times = if self.noted.is_some() { 0 } else { repeats.times };
            if times > 0 || further > 0 {
                self.leap((&before, &found), (times, further), &repeats.shifts);
                self.rounds.place = self.next_round();
                return;
            }
        }
        self.rounds.found = Some(found);
    }

    /// Where rounds begin on the first rank's default stream.
    fn begins(&self) -> &[u32] {
        &self.plans[self.ranks[0].class as usize].rounds
    }

    /// The next of these from where that stream stands: in this step or, behind the last, in the next.
    fn next_round(&self) -> Option<(u32, u32)> {
        let (Actor { at, step, .. }, begins) = (self.actors[0], self.begins());
        let next = begins.get(begins.partition_point(|&place| place <= at));
        next.map(|&place| (step, place)).or(begins.first().map(|&place| (step + 1, place)))
    }

    fn find(&mut self, round: usize, step: u32) -> Found {
        let totals = self.spent_so_far();
        let origin = Origin { step, rounds: true };
        let seen = (0..self.ranks.len()).map(|rank| self.all_seen(rank, origin)).collect();
        let (first, last) = (self.busy_at(0, step), self.busy_at(0, step + 1));
        Found {
            round,
            step,
            now: self.now,
            state: self.state(origin),
            places: self.actors.iter().map(|actor| actor.at).collect(),
            seen,
            totals,
            busy: self.busy[first..last].to_vec(),
        }
    }

    /// How far the round between two equal states repeats; none if an actor's operations say that it does not.
    fn repeats(&self, before: &Found, now: &Found) -> Option<Repeats> {
        let (mut times, mut amid, mut shifts) = (u32::MAX, true, vec![]);
        for (index, rank) in self.ranks.iter().enumerate() {
            let plan = &self.plans[rank.class as usize];
            let transfers = self.job.classes[rank.class as usize].program.transfers.len();
            let mut shift =
                Shift { slots: now.seen[index].checked_sub(before.seen[index])?, turns: vec![None; transfers] };
            let first = index * self.width as usize;
            for actor in first..first + self.width as usize {
                let (from, to) = (before.places[actor] as usize, now.places[actor] as usize);
                let period = to.checked_sub(from)?;
                let host = actor + 1 == first + self.width as usize;
                // A host that has issued all rounds that are written finds something else, which may repeat, too.
                amid &= !host || plan.host_rounds.windows(2).any(|pair| (pair[1] - pair[0]) as usize == period);
                if period == 0 {
                    continue;
                }
                let mut same = |one: usize, other: usize| match host {
                    true => {
                        let pair = plan.host.get(one).zip(plan.host.get(other));
                        pair.is_some_and(|(one, other)| same_action(one, other, &shift))
                    }
                    false => {
                        let pair = plan.ops.get(one).zip(plan.ops.get(other));
                        pair.is_some_and(|(&one, &other)| plan.same_op(one, other, &mut shift))
                    }
                };
                // Where it stands when all these rounds are over, it finds once more what it has found: it is at it.
                let most = period.saturating_mul(times.max(1) as usize).saturating_add(1);
                let alike = (0..most).take_while(|&more| same(from + more, to + more)).count();
                if alike == 0 {
                    return None;
                }
                times = times.min(((alike - 1) / period) as u32);
                // Two whole rounds lie side by side, and the place is within them.
                let missing = period.saturating_sub(alike).min(from);
                amid &= alike + (1..=missing).take_while(|&less| same(from - less, to - less)).count() >= period;
                // A host that is past the rounds finds no more of them, unless what it has found since then goes on as they did.
                let end = plan.host_rounds.last().map_or(to, |&last| last as usize + period);
                let past = if host { to.saturating_sub(end) } else { 0 };
                amid &= past <= from && (1..=past).all(|less| same(from - less, to - less));
            }
            shifts.push(shift);
        }
        (times < u32::MAX).then_some(Repeats { times, amid, shifts })
    }

    /// How many rounds to run here that are not written: those that the step lacks, if their time can be told.
    fn further(&mut self, before: &Found, now: &Found, repeats: &Repeats) -> u32 {
        if !repeats.amid || !self.rounds.wanted(now.step) {
            return 0;
        }
        let (further, all) = (self.rounds.further, u64::from(self.rounds.further) + u64::from(repeats.times));
        let end = (now.now - before.now).checked_mul(all).and_then(|by| by.checked_add(now.now));
        if end.is_none_or(|end| end > LONGEST) {
            return 0;
        }
        if self.rounds.added == 0 {
            self.rounds.each = self.launched(before, now);
        } else if self.rounds.each != self.launched(before, now) {
            return 0;
        }
        self.rounds.added += 1;
        self.rounds.run_like.push((before.places.clone(), now.places.clone()));
        further
    }

    /// What a round launches, by class: all that streams ran between two equal states.
    fn launched(&self, before: &Found, now: &Found) -> Vec<Round> {
        let each = (0..).zip(self.job.classes).map(|(class, of)| {
            let mut round = Round::none_of(of.program);
            let Some(rank) = self.ranks.iter().position(|rank| rank.class == class) else { return round };
            let plan = &self.plans[class as usize];
            let first = rank * self.width as usize;
            let host = first + self.width as usize - 1;
            let paid = &plan.host[before.places[host] as usize..now.places[host] as usize];
            round.host = paid.iter().map(|op| Time(op.cost)).sum();
            for actor in first..host {
                for op in &plan.ops[before.places[actor] as usize..now.places[actor] as usize] {
                    match *op {
                        StreamOp::Kernel { kernel, scope } => {
                            round.kernels[kernel as usize] += 1;
                            round.flops[scope.part()] += of.program.kernels[kernel as usize].model_flops();
                        }
                        StreamOp::Comm { comm, .. } => round.comms[comm as usize] += 1,
                        StreamOp::Exchange { issue, .. } => {
                            round.exchanges[plan.issues[issue as usize].exchange as usize] += 1;
                        }
                        StreamOp::Record { .. } | StreamOp::Wait { .. } | StreamOp::Mark { .. } | StreamOp::StepEnd => {
                        }
                    }
                }
            }
            round
        });
        each.collect()
    }

    /// Goes on as if the round between two states had been run some more times, and so many further times without being written.
    fn leap(&mut self, (before, now): (&Found, &Found), (times, further): (u32, u32), shifts: &[Shift]) {
        let all = u64::from(times) + u64::from(further);
        let by = (now.now - before.now) * all;
        self.spend_again(&before.totals, all, by);
        let first = self.busy_at(0, now.step);
        for (sum, (before, now)) in self.busy[first..].iter_mut().zip(before.busy.iter().zip(&now.busy)) {
            sum.add(before, now, all);
        }
        for (index, actor) in self.actors.iter_mut().enumerate() {
            actor.at += times * (actor.at - before.places[index]);
            actor.reached += by;
            actor.running.since += by;
            if let Doing::Event { slot } = &mut actor.doing {
                *slot += times * shifts[index / self.width as usize].slots;
            }
            self.ready[index].iter_mut().for_each(|due| *due += by);
        }
        for meeting in &mut self.meetings {
            meeting.start += by;
            meeting.running.since += by;
        }
        let width = self.width;
        self.exchanges.go_on(by, |actor, transfer| {
            times * shifts[(actor / width) as usize].turns[transfer as usize].unwrap_or(0)
        });
        for (rank, shift) in shifts.iter().enumerate() {
            let slots = rank * self.slots as usize..(rank + 1) * self.slots as usize;
            let (all, more) = (now.seen[rank] as usize, (times * shift.slots) as usize);
            let (seen, waiter) = (&mut self.seen[slots.clone()], &mut self.waiter[slots]);
            seen.copy_within(all..seen.len() - more, all + more);
            seen[all..all + more].fill(now.step + 1);
            waiter.copy_within(all..waiter.len() - more, all + more);
            waiter[all..all + more].fill(NONE);
        }
        self.queue.postpone(by, |event| {
            if let Event::Visible { rank, slot } = event {
                *slot += times * shifts[*rank as usize].slots;
            }
        });
        self.now += by;
    }
}
