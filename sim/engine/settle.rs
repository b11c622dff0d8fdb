//! Sets speeds at the end of an instant, once, from the state that its events left behind.

use crate::program::Direction;

use super::flights::Flight;
use super::pace::Pace;
use super::parts::{Doing, Event, NONE};
use super::plan::{StreamOp, WHOLE};
use super::state::Engine;
use super::uplinks::{Crossed, Crosses};

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
    #[inline]
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
        let crowded = kernel.share > 0 && rank.filling > WHOLE;
        let pace = if crowded { alone.in_turns(rank.filling, WHOLE) } else { alone };
        if let Some(end) = stream.running.go_on(pace, self.now) {
            self.queue.push(end, Event::Kernel { actor, version: stream.running.version });
        }
    }

    /// Shares the fabric among the collectives and messages that a change can have touched: those on a rank with a
    /// change, those that meet them on any rank, and so on.
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
        for index in 0..self.dirty.len() {
            for at in self.uplinks.above(self.dirty[index]) {
                self.look_at_uplink(self.uplinks.above[at]);
            }
        }
        let mut at = 0;
        while at < self.place.len() {
            let rank = self.place[at];
            at += 1;
            if let Some(uplink) = rank.checked_sub(self.ranks.len() as u32) {
                self.cross_uplink(uplink);
                continue;
            }
            let exchanges = self.cross(rank, Direction::Send);
            self.sharing.end_place();
            // Links carry both ways at once. Collectives use both alike, so only messages tell them apart.
            if exchanges {
                self.cross(rank, Direction::Receive);
                self.sharing.end_place();
            }
        }
        let speeds = self.sharing.solve();
        for (&index, &speed) in self.flow.iter().zip(speeds) {
            let pace = Pace::from_speed(speed);
            if let Some(meeting) = self.meetings.get_mut(index as usize) {
                if let Some(end) = meeting.running.go_on(pace, self.now) {
                    self.queue.push(end, Event::Comm { meeting: index, version: meeting.running.version });
                }
            } else {
                let flight = index - self.meetings.len() as u32;
                let running = &mut self.exchanges.flights[flight as usize].running;
                if let Some(end) = running.go_on(pace, self.now) {
                    self.queue.push(end, Event::Transfer { flight, version: running.version });
                }
            }
        }
    }

    /// Names the flows that cross a rank's fabric one way; returns whether there are exchanges among them.
    #[inline]
    fn cross(&mut self, rank: u32, direction: Direction) -> bool {
        let mut exchanges = false;
        for actor in rank * self.width..self.host(rank) {
            match self.actors[actor as usize].doing {
                Doing::Meeting { meeting } => {
                    if let Some(flow) = self.flow_of(meeting) {
                        self.sharing.cross(flow);
                    }
                }
                Doing::Exchange => {
                    exchanges = true;
                    for index in self.exchanges.of(actor) {
                        let Flight { direction: way, mate, .. } = self.exchanges.flights[index];
                        if mate != NONE && way == direction {
                            let sender = if way == Direction::Send { index as u32 } else { mate };
                            let flow = self.flow_of_message(sender);
                            self.sharing.cross(flow);
                        }
                    }
                }
                _ => {}
            }
        }
        exchanges
    }

    /// The flow of a message that runs, by its sender's flight; when it is new, both its ranks become places to look at.
    fn flow_of_message(&mut self, sender: u32) -> u32 {
        let flight = &mut self.exchanges.flights[sender as usize];
        if flight.visit != self.visit {
            flight.visit = self.visit;
            flight.flow = self.sharing.add_flow(flight.use_of, flight.outer);
            self.flow.push(self.meetings.len() as u32 + sender);
            let mate = flight.mate;
            for end in [sender, mate] {
                let rank = self.poster(end) / self.width;
                self.look_at(rank);
                self.look_at_uplinks(Crosses::Message {
                    rank,
                    transfer: self.exchanges.flights[end as usize].transfer,
                });
            }
        }
        self.exchanges.flights[sender as usize].flow
    }

    /// Makes a rank a place to look at in this search.
    #[inline]
    fn look_at(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if std::mem::replace(&mut state.visit, self.visit) != self.visit {
            self.place.push(rank);
        }
    }

    /// The flow of a meeting whose collective runs; when it is new, its members become places to look at.
    #[inline]
    fn flow_of(&mut self, index: u32) -> Option<u32> {
        if !self.is_running(index) {
            return None;
        }
        let meeting = &mut self.meetings[index as usize];
        if meeting.visit != self.visit {
            meeting.visit = self.visit;
            meeting.flow = self.sharing.add_flow(meeting.use_of, meeting.outer);
            self.flow.push(index);
            for at in self.members(index) {
                self.look_at(self.members[at]);
            }
            self.look_at_uplinks(Crosses::Meeting { copy: index / (self.width - 1) });
        }
        Some(self.meetings[index as usize].flow)
    }

    /// Makes the uplinks that something crosses places to look at in this search.
    #[inline]
    fn look_at_uplinks(&mut self, what: Crosses) {
        for at in self.uplinks.crossed_by(what) {
            self.look_at_uplink(self.uplinks.crossed[at]);
        }
    }

    #[inline]
    fn look_at_uplink(&mut self, uplink: u32) {
        let visit = &mut self.uplinks.visits[uplink as usize];
        if std::mem::replace(visit, self.visit) != self.visit {
            self.place.push(self.ranks.len() as u32 + uplink);
        }
    }

    /// Names the flows that cross an uplink, out and in.
    #[inline]
    fn cross_uplink(&mut self, uplink: u32) {
        let exchanges = self.cross_uplink_one_way(uplink, Direction::Send);
        if exchanges {
            self.cross_uplink_one_way(uplink, Direction::Receive);
        }
    }

    /// Names the flows that cross an uplink one way; returns whether there are exchanges among them.
    #[inline]
    fn cross_uplink_one_way(&mut self, uplink: u32, direction: Direction) -> bool {
        let mut exchanges = false;
        for at in self.uplinks.of(uplink) {
            let Crossed { what, weight } = self.uplinks.crossing[at];
            match what {
                Crosses::Meeting { copy } => {
                    for meeting in copy * (self.width - 1)..(copy + 1) * (self.width - 1) {
                        if let Some(flow) = self.flow_of(meeting) {
                            self.sharing.cross_uplink(flow, weight);
                        }
                    }
                }
                Crosses::Message { rank, transfer } => {
                    for actor in rank * self.width..self.host(rank) {
                        if self.actors[actor as usize].doing != Doing::Exchange {
                            continue;
                        }
                        for index in self.exchanges.of(actor) {
                            let Flight { transfer: of, direction: way, mate, .. } = self.exchanges.flights[index];
                            if of != transfer || mate == NONE {
                                continue;
                            }
                            exchanges = true;
                            if way == direction {
                                let sender = if way == Direction::Send { index as u32 } else { mate };
                                let flow = self.flow_of_message(sender);
                                self.sharing.cross_uplink(flow, weight);
                            }
                        }
                    }
                }
            }
        }
        self.sharing.end_uplink(self.uplinks.level(uplink));
        exchanges
    }
}
