//! Who waits for whom when the queue is empty and not everything is done.

use crate::program::{Direction, ScopeId, StreamId};

use super::parts::Doing;
use super::plan::StreamOp;
use super::state::Engine;
use super::{MissingEnd, Waiting, WaitsFor};

impl Engine<'_> {
    /// Everyone who waits, and for whom, by rank.
    pub(super) fn waits(&self) -> Vec<Waiting> {
        let mut waits = Vec::new();
        for (actor, state) in self.actors.iter().enumerate() {
            let (rank, index) = (actor as u32 / self.width, actor as u32 % self.width);
            let class = self.ranks[rank as usize].class as usize;
            let (program, plan) = (self.job.classes[class].program, &self.plans[class]);
            let is_host = index == self.width - 1;
            let scope = if is_host {
                plan.host_scope[state.at as usize]
            } else {
                match plan.ops[state.at as usize] {
                    StreamOp::Kernel { scope, .. }
                    | StreamOp::Comm { scope, .. }
                    | StreamOp::Exchange { scope, .. }
                    | StreamOp::Wait { scope, .. } => scope,
                    _ => ScopeId::default(),
                }
            };
            let waits_for = match state.doing {
                Doing::Event { slot } => {
                    let slot = plan.slots[slot as usize];
                    let stream = program.streams[slot.stream as usize];
                    let scope = program.scope(slot.scope).to_owned();
                    match slot.event {
                        Some(event) => WaitsFor::Event { event: event.0, stream, scope },
                        None => WaitsFor::Turn { stream, scope },
                    }
                }
                Doing::Meeting { meeting } => self.missing(meeting),
                Doing::Exchange => self.unmatched(rank, actor as u32),
                Doing::Room { stream } => WaitsFor::Room { stream: program.streams[stream as usize] },
                Doing::Idle | Doing::Kernel | Doing::Done => continue,
            };
            let stream = (!is_host).then(|| (StreamId(index as u8), program.streams[index as usize]));
            let scope = program.scope(scope).to_owned();
            let rank = self.cast.ranks[rank as usize].rank;
            waits.push(Waiting { rank, stream, step: state.step, scope, waits_for });
        }
        waits
    }

    fn missing(&self, meeting: u32) -> WaitsFor {
        let state = &self.meetings[meeting as usize];
        let program = self.job.classes[self.ranks[state.opener as usize].class as usize].program;
        let here = |&rank: &u32| {
            let actor = self.actor(rank, state.stream);
            self.actors[actor as usize].doing == Doing::Meeting { meeting }
        };
        let members = self.members[self.members(meeting)].iter();
        WaitsFor::Members {
            kind: program.comms[state.comm as usize].kind,
            group: program.groups[state.group as usize].name.clone(),
            missing: members.filter(|&rank| !here(rank)).map(|&rank| self.cast.ranks[rank as usize].rank).collect(),
        }
    }

    fn unmatched(&self, rank: u32, actor: u32) -> WaitsFor {
        let program = self.job.classes[self.ranks[rank as usize].class as usize].program;
        let rank = self.cast.ranks[rank as usize].rank;
        let ends = self.unmet(actor).map(|id| {
            let transfer = &program.transfers[id.0 as usize];
            let group = program.group(transfer.group);
            // What the peer would have to do is the opposite.
            let to_do = match transfer.direction {
                Direction::Send => Direction::Receive,
                Direction::Receive => Direction::Send,
            };
            MissingEnd {
                rank: group.peer(rank, transfer.ahead).unwrap_or(rank),
                to_do,
                bytes: transfer.bytes,
                group: group.name.clone(),
            }
        });
        WaitsFor::Peers { missing: ends.collect() }
    }
}
