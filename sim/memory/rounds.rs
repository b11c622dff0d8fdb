//! Rounds of a step that are not written: each asks the allocator for what one that is written asks for, with buffers of its own.
//!
//! A round repeats the one before where its instructions name the same buffers, or buffers that were added as many places later. So
//! must all be that is live at its beginning. Such a round is run again under the names that it is written with: before it, what is live
//! takes the names that were live a round ago.

use std::ops::Range;

use crate::program::{BufferId, Instr, Program};

/// A round that is run again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Again {
    /// Its instructions in the step.
    pub(super) round: Range<usize>,
    /// How often.
    pub(super) times: u32,
    /// Of what is live when it has been run and will be gone some rounds later, the names then and a round ago; in order, so that each is
    /// free when it is taken.
    pub(super) renamed: Vec<(u32, u32)>,
    /// What each round adds that stays until all have been run, such as a report of its loss.
    pub(super) kept: Vec<BufferId>,
    /// Where in the step that is given back, of all rounds.
    pub(super) gone: usize,
}

impl Again {
    /// The last round but one, if it repeats the one before; none where every round is written, or it does not.
    pub(super) fn of(program: &Program) -> Option<Again> {
        if program.further == 0 { None } else { Rounds::of(program)?.again() }
    }

    /// How many there are of each buffer that stays, of so many in all: each round adds them in turn.
    pub(super) fn kept_by(&self, count: usize) -> Vec<(BufferId, u64)> {
        let each = |place: usize| (count + self.kept.len() - 1 - place) / self.kept.len();
        self.kept.iter().enumerate().map(|(place, &buffer)| (buffer, each(place) as u64)).collect()
    }
}

/// The last rounds of a step that are followed by another.
struct Rounds<'p> {
    program: &'p Program,
    /// The instructions of two.
    both: [Range<usize>; 2],
    /// What is live where they begin, and where the second ends, of what is taken in a step and does not live through all rounds.
    live: [Vec<u32>; 3],
}

impl<'p> Rounds<'p> {
    /// None where there are too few, or where the first step has others.
    fn of(program: &'p Program) -> Option<Rounds<'p>> {
        let (&[first, ..], &[.., from, middle, end]) = (&program.rounds[..], &program.rounds[..]) else { return None };
        let places = [first, from, middle, end].map(|at| at as usize);
        program.first_at.filter(|&at| at >= places[3])?;
        let (mut taken, mut begun) = (vec![false; program.buffers.len()], 0);
        let live = places.map(|at| {
            for instr in &program.step[begun..at] {
                match *instr {
                    Instr::Alloc { buffer } => taken[buffer.0 as usize] = true,
                    Instr::Free { buffer } => taken[buffer.0 as usize] = false,
                    _ => {}
                }
            }
            begun = at;
            (0..).zip(&taken).filter_map(|(id, &live)| live.then_some(id)).collect::<Vec<u32>>()
        });
        if program.step[..places[3]].iter().any(|instr| matches!(instr, Instr::Rename { .. })) {
            return None;
        }
        let [first, mut one, mut two, mut three] = live;
        let last = three.clone();
        let stays = |id: &u32| first.binary_search(id).is_ok() && last.binary_search(id).is_ok();
        [&mut one, &mut two, &mut three].into_iter().for_each(|live| live.retain(|id| !stays(id)));
        let [_, from, middle, end] = places;
        Some(Rounds { program, both: [from..middle, middle..end], live: [one, two, three] })
    }

    /// What of a round is asked of the allocator.
    fn asks(&self, round: usize) -> impl Iterator<Item = (Instr, Option<BufferId>)> + use<'p> {
        self.program.step[self.both[round].clone()].iter().filter_map(asked)
    }

    /// Whether a buffer was added so many places later than another like it.
    fn later(&self, (before, now): (u32, u32), by: u32) -> bool {
        let kind = |id: u32| self.program.buffer(BufferId(id));
        before.checked_add(by) == Some(now) && kind(before) == kind(now)
    }

    /// What is live at the end of a round and has no like at its beginning; none if what was live then has none now.
    fn more(&self, round: usize, by: u32) -> Option<Vec<u32>> {
        let mut before = self.live[round].iter().peekable();
        let new = |now: &u32| before.next_if(|&&before| self.later((before, *now), by)).is_none();
        let more = self.live[round + 1].iter().copied().filter(new).collect();
        before.next().is_none().then_some(more)
    }

    /// The second round as it is run again; none if it does not repeat the first.
    fn again(&self) -> Option<Again> {
        let by = self.repeats()?;
        let more = self.more(0, by).filter(|more| self.more(1, by).as_ref() == Some(more))?;
        // What stays of every round: there are as many more at each beginning.
        let stays = |id: &u32| by > 0 && more.iter().any(|&more| *id >= more && (id - more).is_multiple_of(by));
        let (kept, moved): (Vec<u32>, Vec<u32>) = self.live[2].iter().partition(|id| stays(id));
        let new = |id: &u32| self.live[1].binary_search(id).is_err();
        let kept: Vec<BufferId> = kept.into_iter().filter(new).map(BufferId).collect();
        if kept.len() != more.len() {
            return None;
        }
        let kept: Vec<BufferId> = kept.into_iter().filter(|&id| self.program.buffer(id).bytes.0 > 0).collect();
        let renamed = moved.into_iter().map(|id| (id, id - by)).collect();
        let (round, gone) = (self.both[1].clone(), self.gone(&kept)?);
        Some(Again { round, times: self.program.further, renamed, kept, gone })
    }

    /// Where behind the rounds the first of these buffers is given back, as all of them are; none if one is not before the optimizer
    /// steps.
    fn gone(&self, kept: &[BufferId]) -> Option<usize> {
        let behind = self.both[1].end;
        let step = &self.program.step[..self.program.first_at?];
        let given_back = |id: &BufferId| {
            let names = |instr: &Instr| matches!(asked(instr), Some((_, Some(buffer))) if buffer == *id);
            let at = behind + step[behind..].iter().position(names)?;
            matches!(step[at], Instr::Free { .. }).then_some(at)
        };
        let places: Option<Vec<usize>> = kept.iter().map(given_back).collect();
        Some(places?.into_iter().min().unwrap_or(behind))
    }

    /// By how many places the buffers of the second round were added later than those of the first; none if it does not repeat it.
    fn repeats(&self) -> Option<u32> {
        let first = |round: usize| {
            self.asks(round).find_map(|(what, buffer)| buffer.filter(|_| matches!(what, Instr::Alloc { .. })))
        };
        let by = match (first(0), first(1)) {
            (Some(before), Some(now)) => now.0.checked_sub(before.0)?,
            (None, None) => 0,
            _ => return None,
        };
        let same = |before: u32, now: u32| before == now && self.live[1].binary_search(&now).is_err();
        let alike = |(before, now): (Option<BufferId>, Option<BufferId>)| match (before, now) {
            (Some(before), Some(now)) => self.later((before.0, now.0), by) || same(before.0, now.0),
            (before, now) => before == now,
        };
        let (mut before, mut now) = (self.asks(0), self.asks(1));
        loop {
            match (before.next(), now.next()) {
                (None, None) => return Some(by),
                (Some((what, before)), Some((too, now))) if what == too && alike((before, now)) => {}
                _ => return None,
            }
        }
    }
}

/// What an instruction asks of the allocator, and of which buffer; none if nothing. A mark asks for itself, which no other does.
fn asked(instr: &Instr) -> Option<(Instr, Option<BufferId>)> {
    const ANY: BufferId = BufferId(0);
    match *instr {
        Instr::Alloc { buffer } => Some((Instr::Alloc { buffer: ANY }, Some(buffer))),
        Instr::Free { buffer } => Some((Instr::Free { buffer: ANY }, Some(buffer))),
        Instr::Recategorize { buffer, category } => Some((Instr::Recategorize { buffer: ANY, category }, Some(buffer))),
        Instr::EmptyCache | Instr::Mark { .. } | Instr::Rename { .. } => Some((*instr, None)),
        _ => None,
    }
}
