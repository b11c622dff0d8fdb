//! Collectives: a stream arrives at a meeting, the last to arrive starts the collective, and all leave together.

use crate::program::CommId;
use crate::units::Time;

use super::parts::{Doing, Meeting};
use super::plan::StreamOp;
use super::state::Engine;
use super::{EngineError, What};

impl Engine<'_> {
    /// A stream reaches a collective, and starts it if all others are there.
    pub(super) fn arrive(&mut self, actor: u32, comm: u32) {
        let (rank, stream) = (actor / self.width, actor % self.width);
        let class = self.job.classes[self.ranks[rank as usize].class as usize];
        let group = class.program.comms[comm as usize].group;
        let index = self.meeting_of[usize::from(group.0) * self.ranks.len() + rank as usize] + stream;
        self.actors[actor as usize].doing = Doing::Meeting { meeting: index };
        self.actors[actor as usize].reached = self.now;

        let mut cost = class.costs.comm[comm as usize];
        if let Some(paces) = &self.paces {
            cost.time = Time(paces[rank as usize].link.of_ps(cost.time.0));
        }
        let meeting = &mut self.meetings[index as usize];
        if meeting.arrived == 0 {
            (meeting.opener, meeting.comm) = (rank, comm);
            (meeting.work, meeting.use_of, meeting.outer) = (cost.time.0, cost.use_of, cost.outer);
        } else {
            meeting.work = meeting.work.max(cost.time.0);
            let uses = meeting.use_of.iter_mut().chain(&mut meeting.outer);
            for (most, part) in uses.zip(cost.use_of.into_iter().chain(cost.outer)) {
                *most = if part > *most { part } else { *most };
            }
            let opener = self.job.classes[self.ranks[meeting.opener as usize].class as usize].program;
            let (expected, found) = (&opener.comms[meeting.comm as usize], &class.program.comms[comm as usize]);
            if expected != found {
                self.failure = Some(EngineError::Mismatch {
                    group: class.program.group(group).name.clone(),
                    first: self.cast.ranks[meeting.opener as usize].rank,
                    expected: format!("{:?} of {} B", expected.kind, expected.bytes.0),
                    rank: self.cast.ranks[rank as usize].rank,
                    found: format!("{:?} of {} B", found.kind, found.bytes.0),
                });
            }
        }
        if meeting.arrived + 1 == meeting.members.1 - meeting.members.0 {
            meeting.start = self.now;
            meeting.running.begin(meeting.work, self.now);
            let slows = class.program.group(group).slows;
            for at in self.members(index) {
                self.change_comms(self.members[at], 1, slows);
            }
        }
        self.meetings[index as usize].arrived += 1;
    }

    /// A collective has ended: its members leave it.
    pub(super) fn end_comm(&mut self, index: u32) {
        let Meeting { stream, start, opener, comm, .. } = self.meetings[index as usize];
        let program = self.job.classes[self.ranks[opener as usize].class as usize].program;
        let slows = program.group(program.comms[comm as usize].group).slows;
        for at in self.members(index) {
            let member = self.members[at];
            self.change_comms(member, -1, slows);
            let actor = self.actor(member, stream);
            let (state, rank) = (&self.actors[actor as usize], &self.ranks[member as usize]);
            let class = rank.class as usize;
            let StreamOp::Comm { comm, scope } = self.plans[class].ops[state.at as usize] else {
                unreachable!("the stream takes part in a collective");
            };
            if rank.watched {
                let busy = self.busy_at(class, state.step);
                self.busy[busy].comm[comm as usize] += Time(self.now - start);
                self.busy[busy].comm_waiting[comm as usize] += Time(start - state.reached);
                if let Some(noted) = &mut self.noted {
                    noted.ops[class].push((state.step, state.at, self.now - start));
                }
            }
            self.span(actor, start, What::Comm(CommId(comm)), scope);
            self.leave(actor);
        }
        let meeting = &mut self.meetings[index as usize];
        meeting.arrived = 0;
        meeting.running.scheduled = false;
    }
}
