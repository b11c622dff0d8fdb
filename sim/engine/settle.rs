//! Sets speeds at the end of an instant, once, from the state that its events left behind.

use super::pace::Pace;
use super::plan::StreamOp;
use super::state::{Doing, Engine, Event};

impl Engine<'_> {
    /// Gives everything that runs its pace, and schedules the ends that this moves.
    pub(super) fn settle(&mut self) {
        self.share_fabric();
        for index in 0..self.dirty.len() {
            let rank = self.dirty[index];
            let state = &mut self.ranks[rank as usize];
            state.dirty = false;
            let slowed = state.comms > 0;
            if std::mem::replace(&mut state.slowed, slowed) != slowed {
                for actor in rank * self.width..self.host(rank) {
                    self.pace_kernel(actor);
                }
            }
        }
        self.dirty.clear();
        for index in 0..self.crowds.len() {
            let rank = self.crowds[index];
            self.ranks[rank as usize].crowded = false;
            for actor in rank * self.width..self.host(rank) {
                self.pace_kernel(actor);
            }
        }
        self.crowds.clear();
        for index in 0..self.fresh.len() {
            self.pace_kernel(self.fresh[index]);
        }
        self.fresh.clear();
    }

    /// Gives the kernel on a stream, if one runs, the pace that its rank allows.
    fn pace_kernel(&mut self, actor: u32) {
        let stream = &mut self.actors[actor as usize];
        if stream.doing != Doing::Kernel {
            return;
        }
        let rank = &self.ranks[(actor / self.width) as usize];
        let plan = &self.plans[rank.class as usize];
        let StreamOp::Kernel { kernel, .. } = plan.ops[stream.at as usize] else {
            unreachable!("the stream runs a kernel");
        };
        let kernel = &plan.kernels[kernel as usize];
        let alone = if rank.slowed { kernel.slowed } else { Pace::FULL };
        let pace = if kernel.fills && rank.filling > 1 { alone.in_turns(rank.filling) } else { alone };
        if let Some(end) = stream.running.go_on(pace, self.now) {
            self.queue.push(end, Event::Kernel { actor, version: stream.running.version });
        }
    }

    /// Shares the fabric among the collectives that a change can have touched: those on a rank with a change, those
    /// that meet them on any rank, and so on.
    fn share_fabric(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        self.visit += 1;
        self.place.clear();
        self.flow.clear();
        self.sharing.clear();
        for &rank in &self.dirty {
            self.ranks[rank as usize].visit = self.visit;
            self.place.push(rank);
        }
        let mut at = 0;
        while at < self.place.len() {
            let rank = self.place[at];
            at += 1;
            for actor in rank * self.width..self.host(rank) {
                let Doing::Meeting { meeting } = self.actors[actor as usize].doing else {
                    continue;
                };
                let Some(flow) = self.flow_of(meeting) else {
                    continue;
                };
                self.sharing.cross(flow);
            }
            self.sharing.end_place();
        }
        let speeds = self.sharing.solve();
        for (&index, &speed) in self.flow.iter().zip(speeds) {
            let running = &mut self.meetings[index as usize].running;
            if let Some(end) = running.go_on(Pace::from_speed(speed), self.now) {
                self.queue.push(end, Event::Comm { meeting: index, version: running.version });
            }
        }
    }

    /// The flow of a meeting whose collective runs; when it is new, its members become places to look at.
    fn flow_of(&mut self, index: u32) -> Option<u32> {
        if !self.is_running(index) {
            return None;
        }
        let meeting = &mut self.meetings[index as usize];
        if meeting.visit != self.visit {
            meeting.visit = self.visit;
            meeting.flow = self.sharing.add_flow(meeting.use_of);
            self.flow.push(index);
            for member in self.members(index) {
                let rank = &mut self.ranks[member as usize];
                if std::mem::replace(&mut rank.visit, self.visit) != self.visit {
                    self.place.push(member);
                }
            }
        }
        Some(self.meetings[index as usize].flow)
    }
}
