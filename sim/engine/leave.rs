//! How a stream leaves what it was busy with, whatever that was, and what this changes for its rank.

use crate::program::{ScopeId, StreamId};
use crate::units::Time;

use super::parts::Doing;
use super::state::Engine;
use super::{Span, What};

impl Engine<'_> {
    /// The stream is done with the kernel, collective or exchange it was busy with.
    #[inline]
    pub(super) fn leave(&mut self, actor: u32) {
        let stream = &mut self.actors[actor as usize];
        stream.doing = Doing::Idle;
        stream.queued -= 1;
        stream.running.scheduled = false;
        let host = self.host(actor / self.width);
        let room = Doing::Room { stream: (actor % self.width) as u8 };
        if self.actors[host as usize].doing == room {
            self.actors[host as usize].doing = Doing::Idle;
            self.agenda.push(host);
        }
        self.pass(actor);
        self.agenda.push(actor);
    }

    #[inline]
    pub(super) fn span(&mut self, actor: u32, start: u64, what: What, scope: ScopeId) {
        if self.options.record {
            let rank = self.cast.ranks[(actor / self.width) as usize].rank;
            let stream = StreamId((actor % self.width) as u8);
            let state = &self.actors[actor as usize];
            let (reached, start, end) = (Time(state.reached), Time(start), Time(self.now));
            self.spans.push(Span { rank, stream, reached, start, end, what, scope, step: state.step });
        }
    }

    /// The stream goes past its current operation.
    pub(super) fn pass(&mut self, actor: u32) {
        let rank = actor / self.width;
        self.account(rank);
        self.actors[actor as usize].at += 1;
        self.ready[actor as usize].pop_front();
    }

    /// One collective or message more or less runs on a rank, which slows kernels beside it or does not.
    pub(super) fn change_comms(&mut self, rank: u32, by: i32, slows: bool) {
        self.account(rank);
        let state = &mut self.ranks[rank as usize];
        state.spent.communication = state.spent.communication.wrapping_add_signed(by);
        if slows {
            state.comms = state.comms.wrapping_add_signed(by);
        }
        if !std::mem::replace(&mut state.dirty, true) {
            self.dirty.push(rank);
        }
    }
}
