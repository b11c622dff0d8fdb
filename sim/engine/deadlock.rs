//! Who waits for whom when the queue is empty and not everything is done.

use crate::program::{ScopeId, StreamId};

use super::plan::StreamOp;
use super::state::{Doing, Engine};
use super::{Waiting, WaitsFor};

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
                    StreamOp::Kernel { scope, .. } | StreamOp::Comm { scope, .. } | StreamOp::Wait { scope, .. } => {
                        scope
                    }
                    _ => ScopeId(0),
                }
            };
            let waits_for = match state.doing {
                Doing::Event { slot } => {
                    let slot = plan.slots[slot as usize];
                    WaitsFor::Event {
                        event: slot.event.0,
                        stream: program.streams[slot.stream as usize],
                        scope: program.scope(slot.scope).to_owned(),
                    }
                }
                Doing::Meeting { meeting } => self.missing(meeting),
                Doing::Room { stream } => WaitsFor::Room { stream: program.streams[stream as usize] },
                Doing::Idle | Doing::Kernel | Doing::Done => continue,
            };
            let stream = (!is_host).then(|| (StreamId(index as u8), program.streams[index as usize]));
            let scope = program.scope(scope).to_owned();
            waits.push(Waiting { rank, stream, step: state.step, scope, waits_for });
        }
        waits
    }

    fn missing(&self, meeting: u32) -> WaitsFor {
        let state = &self.meetings[meeting as usize];
        let program = self.job.classes[self.ranks[state.opener as usize].class as usize].program;
        let here = |rank: &u32| {
            let actor = self.actor(*rank, state.stream);
            self.actors[actor as usize].doing == Doing::Meeting { meeting }
        };
        WaitsFor::Members {
            kind: program.comms[state.comm as usize].kind,
            group: program.groups[state.group as usize].name.clone(),
            missing: self.members(meeting).filter(|rank| !here(rank)).collect(),
        }
    }
}
