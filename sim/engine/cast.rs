//! Who is simulated, and who meets whom: every rank of the job, or one for each class of identical ranks.
//!
//! **Why one may stand for all.** Give every simulated rank of a folded run the members that its group's members have as
//! classes, each once. If all ranks of a class find the same classes in their copies of each group, and the same class
//! behind each peer (`check.rs` sees to it), then ranks of one class do the same at the same times: a collective starts
//! when the last class has arrived, a transfer when both ends have, and what a rank's fabric carries is shared by as many
//! as many flows on each rank of the class, so that the one max-min fair answer is the same for all of them.

use std::collections::BTreeMap;

use crate::hardware::OUTER;
use crate::network::LEVELS;
use crate::program::{Direction, Group, Transfer};

use super::parts::{Meeting, NONE, Running};
use super::{Class, Job, Simulated};

/// The simulated ranks of a job.
#[derive(Debug)]
pub(super) struct Cast<'a> {
    pub(super) job: Job<'a>,
    fold: bool,
    pub(super) ranks: Vec<Simulated>,
}

impl<'a> Cast<'a> {
    /// The first rank of each class, by class, if folded; else all.
    pub(super) fn new(job: Job<'a>, fold: bool) -> Cast<'a> {
        let each = || job.class_of.iter().zip(0..);
        let ranks = if fold {
            let mut first = vec![Simulated { rank: NONE, class: 0, stands_for: 0 }; job.classes.len()];
            for (&class, rank) in each() {
                let first = &mut first[class as usize];
                if first.stands_for == 0 {
                    (first.rank, first.class) = (rank, class);
                }
                first.stands_for += 1;
            }
            first
        } else {
            each().map(|(&class, rank)| Simulated { rank, class, stands_for: 1 }).collect()
        };
        Cast { job, fold, ranks }
    }

    /// The index of the simulated rank that stands for a rank.
    pub(super) fn player(&self, rank: u32) -> u32 {
        if self.fold { self.job.class_of[rank as usize] } else { rank }
    }

    /// Who meets whom over `groups`, on each of `streams`.
    pub(super) fn meetings(&self, groups: &[Group], streams: u32) -> Meetings {
        let count = self.ranks.len();
        let mut table = Meetings { of: vec![NONE; groups.len() * count], members: vec![], meetings: vec![] };
        let mut here = vec![];
        for (id, group) in groups.iter().enumerate() {
            for index in 0..count {
                if table.of[id * count + index] != NONE {
                    continue;
                }
                here.clear();
                for member in group.members(self.ranks[index].rank).map(|rank| self.player(rank)) {
                    if here.last() != Some(&member) {
                        here.push(member);
                    }
                }
                here.sort_unstable();
                here.dedup();
                let members = (table.members.len() as u32, (table.members.len() + here.len()) as u32);
                table.members.extend(&here);
                for &member in &here {
                    table.of[id * count + member as usize] = table.meetings.len() as u32;
                }
                if here.is_empty() {
                    continue;
                }
                table.meetings.extend((0..streams).map(|stream| Meeting {
                    group: id as u16,
                    stream: stream as u8,
                    arrived: 0,
                    members,
                    opener: NONE,
                    comm: NONE,
                    work: 0,
                    use_of: [0.0; LEVELS],
                    outer: [0.0; OUTER],
                    start: 0,
                    running: Running::NOTHING,
                    visit: 0,
                    flow: NONE,
                }));
            }
        }
        table
    }

    /// The channel of each transfer of each simulated rank, rank after rank with room for `width` transfers each, and
    /// the number of channels. A channel carries the messages of one group from one rank to another.
    pub(super) fn channels(&self, width: u32) -> (Vec<u32>, usize) {
        let mut channels = BTreeMap::new();
        let mut channel_of = vec![NONE; self.ranks.len() * width as usize];
        for (index, simulated) in self.ranks.iter().enumerate() {
            let Class { program, .. } = self.job.classes[simulated.class as usize];
            for (id, &Transfer { direction, group: on, ahead, .. }) in program.transfers.iter().enumerate() {
                let group = program.group(on);
                let Some(peer) = group.peer(simulated.rank, ahead) else { continue };
                let (from, ahead) = match direction {
                    Direction::Send => (index as u32, ahead),
                    Direction::Receive => (self.player(peer), group.ahead(-i64::from(ahead))),
                };
                let next = channels.len() as u32;
                channel_of[index * width as usize + id] = *channels.entry((from, on, ahead)).or_insert(next);
            }
        }
        (channel_of, channels.len())
    }
}

/// Where ranks meet for collectives.
#[derive(Debug)]
pub(super) struct Meetings {
    /// The meeting of a simulated rank's copy of a group on the first stream, group after group; those on the other
    /// streams follow it.
    pub(super) of: Vec<u32>,
    /// Members of the copies, one copy after the other.
    pub(super) members: Vec<u32>,
    pub(super) meetings: Vec<Meeting>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Costs;
    use crate::program::Program;

    /// Members of the meeting of each simulated rank over one group.
    fn members(group: Group, class_of: &[u32], fold: bool) -> Vec<Vec<u32>> {
        let program = Program { ranks: class_of.len() as u32, groups: vec![group], ..Program::default() };
        let costs = Costs::free(&program);
        let count = class_of.iter().max().map_or(0, |last| last + 1);
        let classes = vec![Class { program: &program, costs: &costs }; count as usize];
        let cast = Cast::new(Job { classes: &classes, class_of }, fold);
        let table = cast.meetings(&program.groups, 2);
        let of = |&meeting: &u32| match table.meetings.get(meeting as usize + 1) {
            Some(meeting) => {
                assert_eq!(meeting.stream, 1);
                table.members[meeting.members.0 as usize..meeting.members.1 as usize].to_vec()
            }
            None => vec![],
        };
        table.of.iter().map(of).collect()
    }

    #[test]
    fn every_rank_meets_the_members_of_its_group() {
        let group = Group::new("tp", 3, 4);
        let met = members(group.clone(), &[0; 24], false);
        for (rank, met) in met.iter().enumerate() {
            assert_eq!(*met, group.members(rank as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_folded_rank_meets_the_other_classes_of_its_group_and_itself() {
        // Three stages of four ranks.
        let stages = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        assert_eq!(members(Group::new("dp", 4, 1), &stages, true), [[0], [1], [2]]);
        assert_eq!(members(Group::new("pp", 3, 4), &stages, true), [[0, 1, 2], [0, 1, 2], [0, 1, 2]]);
        assert_eq!(members(Group::ends("ends", 3, 4), &stages, true), [vec![0, 2], vec![], vec![0, 2]]);
    }
}
