//! Who meets whom, rank by rank: the copy of each group that a rank belongs to, and the other end of each message.

use std::collections::BTreeMap;

use super::super::Job;
use super::tape::Tape;
use crate::program::GroupId;

/// The copy of a rank that belongs to none.
pub(super) const NOBODY: u32 = u32::MAX;

/// The ranks of a job by class, and whom they meet.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Ranks of each class.
    pub(super) ranks: Vec<Vec<u32>>,
    /// By group, if its members meet on the tape: the copies.
    pub(super) copies: Vec<Option<Copies>>,
    /// Receivers among the ranks of their class, for each rank of the sender's.
    pub(super) receivers: Vec<Vec<u32>>,
    /// By message: which of these.
    pub(super) receiver_of: Vec<u32>,
}

/// The copies of a group.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) count: u32,
    /// By class, and rank of the class: the copy that it belongs to, or [`NOBODY`].
    pub(super) of: Vec<Vec<u32>>,
}

impl Members {
    pub(super) fn of(job: Job<'_>, tape: &Tape) -> Members {
        let mut ranks = vec![vec![]; job.classes.len()];
        let mut place = vec![0; job.class_of.len()];
        for (rank, &class) in job.class_of.iter().enumerate() {
            place[rank] = ranks[class as usize].len() as u32;
            ranks[class as usize].push(rank as u32);
        }
        let mut copies: Vec<Option<Copies>> = tape.groups.iter().map(|_| None).collect();
        for meet in &tape.meets {
            copies[usize::from(meet.group)].get_or_insert_with(|| Copies::of(job, &ranks, GroupId(meet.group)));
        }
        let (mut receivers, mut receiver_of, mut known) = (vec![], vec![], BTreeMap::new());
        for message in &tape.messages {
            let (class, transfer) = (message.from.lane.class, message.from.transfer);
            let index = *known.entry((class, transfer)).or_insert_with(|| {
                let program = job.classes[class as usize].program;
                let transfer = &program.transfers[transfer as usize];
                let group = program.group(transfer.group);
                let peer = |&rank: &u32| group.peer(rank, transfer.ahead).map_or(0, |peer| place[peer as usize]);
                receivers.push(ranks[class as usize].iter().map(peer).collect());
                receivers.len() as u32 - 1
            });
            receiver_of.push(index);
        }
        Members { ranks, copies, receivers, receiver_of }
    }
}

impl Copies {
    fn of(job: Job<'_>, ranks: &[Vec<u32>], group: GroupId) -> Copies {
        let group = job.classes[0].program.group(group);
        let mut number = BTreeMap::new();
        let mut copy = |&rank: &u32| {
            let next = number.len() as u32;
            group.place(rank).map_or(NOBODY, |(lowest, _)| *number.entry(lowest).or_insert(next))
        };
        let of = ranks.iter().map(|ranks| ranks.iter().map(&mut copy).collect()).collect();
        Copies { of, count: number.len() as u32 }
    }
}
