//! Finds a round on a tape that does what the round behind it does, so that it can be played over and over again.
//!
//! The tape is cut where the first class begins a round ([`crate::program::Program::rounds`]). Of three cuts, the two rounds between them are compared tick by tick: the same lanes, durations and members, and registers that hold the same
//! things. Registers are given out anew in each round, so what is *kept* at a cut says which of them holds what.

use std::collections::BTreeSet;

use super::super::plan::{Plan, StreamOp};
use super::super::ranks::Noted;
use super::super::rounds::Like;
use super::tape::{Again, Cut, Issued, Kept, Lane, Meeting, Register, Tape, Tick};

/// The last round that the next repeats, and that is as good as the one that the event loop runs again: the first ones may still fill the
/// pipeline, and of the last ones some are beside what comes behind the rounds, and may take longer.
pub(super) fn find(
    tape: &Tape,
    cuts: &[Cut],
    (plans, durations, like): (&[Plan], &Noted, &Like),
    times: u32,
) -> Option<Again> {
    cuts.windows(3).rev().find_map(|cuts| {
        let [from, at, to] = cuts else { return None };
        let again = Comparison::new(tape, durations, from, at)?.compare(tape, (from, at, to), times)?;
        is_like(plans, durations, like, (from, at)).then_some(again)
    })
}

/// Whether repeating what lies between two cuts gives what repeating the event loop's round gives: on each stream both have as many
/// operations, and from the first of either to the last all take as long as those of the round behind.
fn is_like(plans: &[Plan], durations: &Noted, like: &Like, (from, at): (&Cut, &Cut)) -> bool {
    let alike = |step: usize, class: usize, one: usize, other: usize| {
        let (plan, ops, legs) = (&plans[class], durations.ops(class, step), durations.legs(class, step));
        match (plan.ops[one], plan.ops[other]) {
            (StreamOp::Exchange { issue: one, .. }, StreamOp::Exchange { issue: other, .. }) => {
                let [one, other] = [one, other].map(|issue| {
                    let issue = &plan.issues[issue as usize];
                    &legs[issue.first as usize..(issue.first + issue.count) as usize]
                });
                one == other
            }
            _ => ops[one] == ops[other],
        }
    };
    like.iter().enumerate().all(|(step, classes)| {
        classes.iter().enumerate().all(|(class, streams)| {
            streams.iter().enumerate().all(|(stream, run)| {
                let cut = from.places[class][stream]..at.places[class][stream];
                let all = run.start.min(cut.start)..run.end.max(cut.end);
                run.len() == cut.len()
                    && (all.start..all.end - run.len()).all(|op| alike(step, class, op, op + run.len()))
            })
        })
    })
}

/// Two rounds, one behind the other, as far as they have been compared.
struct Comparison<'a> {
    durations: &'a Noted,
    /// By class and register of the first round: the one that holds the same in the second.
    same: Vec<Vec<Option<Register>>>,
    /// The same at the cuts themselves, but for what no round moves.
    kept: Vec<Vec<(Register, Register)>>,
}

/// What is kept at two cuts, pair by pair; none if it is not the same. Also whether each moved with its round.
fn pairs(before: &[(Kept, Register)], after: &[(Kept, Register)]) -> Option<Vec<(Register, Register, bool)>> {
    let place = |kept: &Kept| match *kept {
        Kept::Event { slot, recorded } => Kept::Event { slot: slot - recorded, recorded: 0 },
        other => other,
    };
    let find = |kept: &Kept| after.iter().find(|(other, _)| place(other) == place(kept));
    let still = |kept: &Kept| {
        let Kept::Event { slot, .. } = *kept else { return None };
        after.iter().find(|(other, _)| matches!(other, Kept::Event { slot: same, .. } if *same == slot))
    };
    let pair = |(kept, register): &(Kept, Register)| match find(kept) {
        Some(&(_, other)) => Some((*register, other, true)),
        // An event of long ago that somebody still waits for.
        None => still(kept).filter(|(_, other)| other == register).map(|_| (*register, *register, false)),
    };
    let pairs: Vec<_> = before.iter().map(pair).collect::<Option<_>>()?;
    (before.len() == after.len()).then_some(pairs)
}

impl<'a> Comparison<'a> {
    fn new(tape: &Tape, durations: &'a Noted, from: &Cut, at: &Cut) -> Option<Comparison<'a>> {
        let mut same: Vec<Vec<Option<Register>>> =
            tape.registers.iter().map(|&registers| vec![None; registers as usize]).collect();
        let mut kept = vec![];
        for ((before, after), same) in from.kept.iter().zip(&at.kept).zip(&mut same) {
            let pairs = pairs(before, after)?;
            pairs.iter().for_each(|&(one, other, _)| same[one as usize] = Some(other));
            kept.push(pairs.into_iter().filter(|&(.., moves)| moves).map(|(one, other, _)| (one, other)).collect());
        }
        Some(Comparison { durations, same, kept })
    }

    fn compare(mut self, tape: &Tape, (from, at, to): (&Cut, &Cut, &Cut), times: u32) -> Option<Again> {
        let (first, second) = (&tape.ticks[from.tick..at.tick], &tape.ticks[at.tick..to.tick]);
        let alike = first.len() == second.len() && !first.is_empty();
        if !alike || !first.iter().zip(second).all(|(&one, &other)| self.is_same(tape, one, other)) {
            return None;
        }
        let mut leaves: Vec<Vec<u64>> = tape.queues.iter().map(|queues| vec![0; queues.len()]).collect();
        let mut touched: Vec<Vec<bool>> = tape.queues.iter().map(|queues| vec![false; queues.len()]).collect();
        let (mut meetings, mut used) = (BTreeSet::new(), BTreeSet::new());
        for tick in first {
            tick.registers(tape, |class, register| {
                used.insert((class, register));
            });
            match *tick {
                Tick::Kernel { lane, .. } | Tick::Leave { lane, .. } => {
                    leaves[lane.class as usize][lane.stream as usize] += 1;
                    touched[lane.class as usize][lane.stream as usize] = true;
                }
                Tick::Record { lane, .. } | Tick::Wait { lane, .. } | Tick::Arrive { lane, .. } => {
                    touched[lane.class as usize][lane.stream as usize] = true;
                }
                Tick::Meet { meet } => {
                    let meet = &tape.meets[meet as usize];
                    let classes = meet.parts.iter().map(|(lane, _)| lane.class).collect();
                    meetings.insert(Meeting::Group { group: meet.group, classes });
                }
                Tick::Message { message } => {
                    meetings.insert(Meeting::Message { message });
                }
                _ => {}
            }
        }
        let moves = self.kept.iter().zip(&tape.registers);
        let swaps = moves.map(|(kept, &registers)| swaps(kept, registers)).collect();
        // What lies where it lay and is not looked at was there before the rounds.
        let moving = (0..).zip(&self.kept).map(|(class, kept)| {
            let moves = |&&(one, other): &&(Register, Register)| one != other || used.contains(&(class, one));
            kept.iter().filter(moves).map(|&(one, _)| one).collect()
        });
        let moving = moving.collect();
        let meetings = meetings.into_iter().collect();
        Some(Again { from: from.tick, to: at.tick, times, swaps, moving, touched, leaves, meetings })
    }

    /// Whether two ticks do the same, each in its round.
    fn is_same(&mut self, tape: &Tape, one: Tick, other: Tick) -> bool {
        use Tick::*;
        match (one, other) {
            (Pay { class: a, cost: c }, Pay { class: b, cost: d }) => a == b && c == d,
            (Room { lane: a }, Room { lane: b }) => a == b,
            (HostWait { class: a, event: x }, HostWait { class: b, event: y }) => a == b && self.reads(a, x, y),
            (Keep { class: a, into: x }, Keep { class: b, into: y }) => a == b && self.writes(a, x, y),
            (Kernel { lane: a, issued: x, op: o, bound: m }, Kernel { lane: b, issued: y, op: p, bound: n }) => {
                a == b && m == n && self.issued(a, x, y) && self.ops_last_alike(a, o, p)
            }
            (Record { lane: a, issued: x, later: l, into: r }, Record { lane: b, issued: y, later: m, into: s }) => {
                a == b && l == m && self.issued(a, x, y) && self.writes(a.class, r, s)
            }
            (Wait { lane: a, event: x }, Wait { lane: b, event: y }) => a == b && self.reads(a.class, x, y),
            (Arrive { lane: a, issued: x }, Arrive { lane: b, issued: y }) => a == b && self.issued(a, x, y),
            (Meet { meet: x }, Meet { meet: y }) => {
                let (x, y) = (&tape.meets[x as usize], &tape.meets[y as usize]);
                let parts = x.parts.iter().zip(&y.parts);
                x.group == y.group
                    && x.parts.len() == y.parts.len()
                    && parts.into_iter().all(|(&(a, o), &(b, p))| a == b && self.ops_last_alike(a, o, p))
            }
            (Post { lane: a, into: x }, Post { lane: b, into: y }) => a == b && self.writes(a.class, x, y),
            (Message { message: x }, Message { message: y }) => {
                let (x, y) = (tape.messages[x as usize], tape.messages[y as usize]);
                let ends = [(x.from, y.from), (x.to, y.to)];
                x.group == y.group
                    && ends.into_iter().all(|(a, b)| {
                        (a.lane, a.transfer) == (b.lane, b.transfer)
                            && self.reads(a.lane.class, a.until, b.until)
                            && self.legs_last_alike(a.lane, a.leg, b.leg)
                    })
            }
            (Leave { lane: a, at: x }, Leave { lane: b, at: y }) => {
                a == b
                    && match (x, y) {
                        (None, None) => true,
                        (Some(x), Some(y)) => self.reads(a.class, x, y),
                        _ => false,
                    }
            }
            _ => false,
        }
    }

    fn reads(&self, class: u32, one: Register, other: Register) -> bool {
        self.same[class as usize][one as usize] == Some(other)
    }

    fn writes(&mut self, class: u32, one: Register, other: Register) -> bool {
        self.same[class as usize][one as usize] = Some(other);
        true
    }

    fn issued(&self, lane: Lane, one: Issued, other: Issued) -> bool {
        match (one, other) {
            (Issued::Now, Issued::Now) => true,
            (Issued::At(one), Issued::At(other)) => self.reads(lane.class, one, other),
            _ => false,
        }
    }

    fn ops_last_alike(&self, lane: Lane, one: u32, other: u32) -> bool {
        let durations = self.durations;
        let of = |step, op: u32| durations.ops(lane.class as usize, step)[op as usize];
        (0..durations.steps()).all(|step| of(step, one) == of(step, other))
    }

    fn legs_last_alike(&self, lane: Lane, one: u32, other: u32) -> bool {
        let durations = self.durations;
        let of = |step, leg: u32| durations.legs(lane.class as usize, step)[leg as usize];
        (0..durations.steps()).all(|step| of(step, one) == of(step, other))
    }
}

/// Swaps of registers, in order, after which the first of each pair holds what the second held.
fn swaps(pairs: &[(Register, Register)], registers: u32) -> Vec<(Register, Register)> {
    // Where the content of each register now lies.
    let mut lies: Vec<Register> = (0..registers).collect();
    let mut swaps = vec![];
    for &(into, from) in pairs {
        let now = lies[from as usize];
        if now != into {
            let displaced = (0..registers).find(|&content| lies[content as usize] == into);
            swaps.push((into, now));
            lies[from as usize] = into;
            if let Some(displaced) = displaced {
                lies[displaced as usize] = now;
            }
        }
    }
    swaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_bring_every_content_to_its_register() {
        for pairs in [vec![(0, 1), (1, 2), (2, 0)], vec![(3, 0)], vec![(1, 2), (2, 3), (0, 0)], vec![]] {
            let mut content: Vec<u32> = (0..5).collect();
            swaps(&pairs, 5).iter().for_each(|&(a, b)| content.swap(a as usize, b as usize));
            assert!(pairs.iter().all(|&(into, from)| content[into as usize] == from), "{pairs:?} {content:?}");
        }
    }

    #[test]
    fn what_is_kept_moves_with_its_round_or_stays_for_good() {
        let event = |slot, recorded| Kept::Event { slot, recorded };
        let before = [(event(2, 10), 0), (event(9, 10), 1), (Kept::Issued { stream: 0, place: 0 }, 2)];
        let after = [(event(2, 14), 0), (event(13, 14), 2), (Kept::Issued { stream: 0, place: 0 }, 1)];
        assert_eq!(pairs(&before, &after), Some(vec![(0, 0, false), (1, 2, true), (2, 1, true)]));
        assert_eq!(pairs(&before, &after[..2]), None);
        assert_eq!(pairs(&before[..1], &[(event(7, 14), 0)]), None);
    }
}
