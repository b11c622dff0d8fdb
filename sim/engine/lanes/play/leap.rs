//! Rounds that only move everything on are taken at once.
//!
//! A round turns the times of all ranks into later ones by sums and maxima. Say every time of a rank is later by the same as a round before,
//! and ranks that meet agree on by how much. Then the next round moves all of them on by as much again, and so do all others. Ranks of
//! different replicas need not agree: they do not meet before the step's end.

use super::super::super::ranks::Noted;
use super::super::members::NOBODY;
use super::super::tape::{Again, Meeting};
use super::{Player, Queue, Side, Times};

/// What was found when the round before began.
#[derive(Default)]
struct Found {
    /// By class: the host's times.
    hosts: Vec<Times>,
    /// By class and rank: all that lies behind or ahead of them.
    beside: Vec<Vec<u64>>,
    /// The same of queues in which something may have to wait for its place, with class and stream, if they were looked at.
    queues: Option<Vec<(usize, usize, Vec<u64>)>>,
    waits: Vec<Vec<Times>>,
}

impl Player<'_> {
    /// Plays a round so many times more.
    pub(super) fn again(&mut self, again: &Again, durations: (&Noted, usize), last: bool) {
        // Times that vary never repeat, and who is watched is watched in every round.
        let leaps = self.noise.is_none() && self.watched.is_empty();
        let mut before = Found::default();
        for round in 0..again.times {
            for (side, swaps) in self.sides.iter_mut().zip(&again.swaps) {
                swaps.iter().for_each(|&(a, b)| side.registers.swap(a as usize, b as usize));
            }
            if leaps {
                let mut found = self.find(again, last);
                if let Some(later) = self.repeats(again, &before, &found) {
                    let queues = self.look_at_queues(again, &later);
                    if queues.is_empty() || before.queues.as_ref() == Some(&queues) {
                        self.leap(again, &later, again.times - round, &before.waits);
                        break;
                    }
                    found.queues = Some(queues);
                }
                before = found;
            }
            self.ticks((again.from, again.to), durations, last);
        }
    }

    fn find(&self, again: &Again, last: bool) -> Found {
        let of = |((side, touched), moving): ((&Side, &Vec<bool>), &Vec<u32>)| {
            let streams = side.streams.iter().zip(touched).filter(|(_, touched)| **touched).map(|(times, _)| times);
            let registers = moving.iter().map(|&register| &side.registers[register as usize]);
            beside(&side.host, streams.chain(registers))
        };
        Found {
            hosts: self.sides.iter().map(|side| side.host.clone()).collect(),
            beside: self.sides.iter().zip(&again.touched).zip(&again.moving).map(of).collect(),
            queues: None,
            waits: if last { self.waits.clone() } else { vec![] },
        }
    }

    fn look_at_queues(&self, again: &Again, later: &[Times]) -> Vec<(usize, usize, Vec<u64>)> {
        let mut all = vec![];
        for (class, side) in self.sides.iter().enumerate() {
            for (stream, (queue, &leaves)) in side.queues.iter().zip(&again.leaves[class]).enumerate() {
                if leaves > 0 && !queue.always_has_room(&side.host, &later[class], leaves) {
                    all.push((class, stream, beside(&side.host, queue.oldest_first())));
                }
            }
        }
        all
    }

    /// By how much each rank is later than a round before, by class; none if the round does not repeat.
    fn repeats(&self, again: &Again, before: &Found, now: &Found) -> Option<Vec<Times>> {
        if before.beside != now.beside {
            return None;
        }
        let later: Vec<Times> = now
            .hosts
            .iter()
            .zip(&before.hosts)
            .map(|(now, before)| now.iter().zip(before).map(|(now, before)| now - before).collect())
            .collect();
        let agree = |meeting: &Meeting| match meeting {
            Meeting::Group { group, classes } => {
                let Some(copies) = &self.members.copies[usize::from(*group)] else { return true };
                let mut of = vec![None; copies.count as usize];
                classes.iter().all(|&class| {
                    let ranks = copies.of[class as usize].iter().zip(&later[class as usize]);
                    let mut ranks = ranks.filter(|(copy, _)| **copy != NOBODY);
                    ranks.all(|(&copy, &later)| *of[copy as usize].get_or_insert(later) == later)
                })
            }
            Meeting::Message { message } => {
                let receivers = &self.members.receivers[self.members.receiver_of[*message as usize] as usize];
                let message = &self.tape.messages[*message as usize];
                let [from, to] = [message.from, message.to].map(|end| &later[end.lane.class as usize]);
                from.iter().zip(receivers).all(|(&from, &at)| from == to[at as usize])
            }
        };
        again.meetings.iter().all(agree).then_some(later)
    }

    /// Moves on as so many rounds would, from where one begins to where it ends.
    fn leap(&mut self, again: &Again, later: &[Times], rounds: u32, before: &[Vec<Times>]) {
        let count = f64::from(rounds);
        for (class, side) in self.sides.iter_mut().enumerate() {
            let by: Times = later[class].iter().map(|later| later * count).collect();
            move_on(&mut side.host, &by);
            let touched = side.streams.iter_mut().zip(&again.touched[class]).filter(|(_, touched)| **touched);
            touched.for_each(|(times, _)| move_on(times, &by));
            again.moving[class].iter().for_each(|&register| move_on(&mut side.registers[register as usize], &by));
            for (queue, &leaves) in side.queues.iter_mut().zip(&again.leaves[class]) {
                queue.move_on(&later[class], (rounds, leaves));
            }
            // The registers lie as they do behind the round.
            let swaps = again.swaps[class].iter().rev();
            swaps.for_each(|&(a, b)| side.registers.swap(a as usize, b as usize));
        }
        let each = self.waits.iter_mut().flatten().zip(before.iter().flatten());
        for (waits, before) in each {
            waits.iter_mut().zip(before).for_each(|(wait, before)| *wait += (*wait - before) * count);
        }
    }
}

impl Queue {
    /// Whether no host ever waits for a place while rounds repeat that issue so many operations, and are later by as much: what a place waits
    /// for has left when the round begins that asks for it.
    fn always_has_room(&self, host: &[f64], later: &[f64], each: u64) -> bool {
        let places = self.left.len() as u64;
        let mut remembered = self.issues.saturating_sub(places)..self.leaves;
        remembered.all(|leave| {
            let rounds = ((leave + places - self.issues) / each) as f64;
            let left = self.left[(leave % places) as usize].iter();
            left.zip(host).zip(later).all(|((&left, &host), &later)| left <= host + rounds * later)
        })
    }

    /// The times of a queue; of one that was never full, those that nobody needs are zero.
    fn oldest_first(&self) -> impl Iterator<Item = &Times> {
        let places = self.left.len() as u64;
        (0..places).map(move |ahead| &self.left[((self.leaves + ahead) % places) as usize])
    }

    /// Moves on by so many rounds, in each of which so many operations leave.
    fn move_on(&mut self, later: &[f64], (rounds, leaves): (u32, u64)) {
        let places = self.left.len() as u64;
        if leaves == 0 || places == 0 {
            return;
        }
        // The last rounds fill it.
        let last = (places / leaves + 1).min(rounds.into());
        let whole = if leaves < places { u64::from(rounds) - last } else { rounds.into() };
        let by: Times = later.iter().map(|later| later * whole as f64).collect();
        self.left.iter_mut().for_each(|times| move_on(times, &by));
        if leaves < places {
            for _ in 0..last * leaves {
                let mut times = self.left[((self.leaves - leaves) % places) as usize].clone();
                move_on(&mut times, later);
                self.left[(self.leaves % places) as usize] = times;
                self.leaves += 1;
            }
            self.issues += last * leaves;
        }
    }
}

fn move_on(times: &mut [f64], by: &[f64]) {
    times.iter_mut().zip(by).for_each(|(time, by)| *time += by);
}

/// For each rank a number of how far times lie from its host's; two rounds with the same numbers have the same distances.
fn beside<'t>(host: &Times, times: impl Iterator<Item = &'t Times>) -> Vec<u64> {
    let mut all = vec![0u64; host.len()];
    for times in times {
        for ((number, time), host) in all.iter_mut().zip(times).zip(host) {
            // Whole picoseconds, times an odd constant: 2^64 over the golden ratio.
            let mixed = (*number ^ (time - host) as i64 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *number = mixed ^ (mixed >> 29);
        }
    }
    all
}
