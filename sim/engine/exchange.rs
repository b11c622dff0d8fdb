//! Sends and receives: a stream posts all of an exchange's at once, each runs when its other end is there, and the stream
//! goes on when all have ended.

use crate::program::{Direction, ExchangeId, TransferId};
use crate::units::Time;

use super::flights::{Batch, Flight};
use super::parts::{Actor, Doing, NONE, Rank};
use super::plan::{Issue, Leg, StreamOp};
use super::state::Engine;
use super::{EngineError, What};

impl Engine<'_> {
    /// A stream reaches an exchange and posts its sends and receives.
    pub(super) fn post(&mut self, actor: u32, issue: u32) {
        let (now, rank) = (self.now, actor / self.width);
        let class = self.ranks[rank as usize].class as usize;
        let state = &mut self.actors[actor as usize];
        (state.doing, state.reached) = (Doing::Exchange, now);
        let step = state.step;
        let Issue { first, count, .. } = self.plans[class].issues[issue as usize];
        self.exchanges.batches[actor as usize] = Batch { open: count, running: 0, start: None, busy: 0, since: 0 };
        for (index, at) in (actor * self.exchanges.width..).zip(first..first + count) {
            let Leg { transfer, direction, turn, every } = self.plans[class].legs[at as usize];
            let turn = step * every + turn;
            let channel = self.exchanges.channel_of[(rank * self.exchanges.transfers + transfer) as usize] as usize;
            let mate = self.exchanges.take(channel, turn, direction);
            let next = if mate.is_some() { NONE } else { self.exchanges.awaiting[channel] };
            let flight = &mut self.exchanges.flights[index as usize];
            *flight = Flight { transfer, turn, mate: NONE, next, direction, ended: false, ..*flight };
            match mate {
                None => self.exchanges.awaiting[channel] = index,
                Some(mate) if direction == Direction::Send => self.begin_transfer(index, mate),
                Some(mate) => self.begin_transfer(mate, index),
            }
        }
    }

    /// The stream that a flight is of.
    pub(super) fn poster(&self, flight: u32) -> u32 {
        flight / self.exchanges.width
    }

    /// A message begins to run: both of its ends are there.
    fn begin_transfer(&mut self, sender: u32, receiver: u32) {
        let ends = [sender, receiver].map(|flight| {
            let rank = self.poster(flight) / self.width;
            let class = self.job.classes[self.ranks[rank as usize].class as usize];
            let transfer = self.exchanges.flights[flight as usize].transfer as usize;
            let mut cost = class.costs.transfer[transfer];
            if let Some(paces) = &self.paces {
                cost.time = Time(paces[rank as usize].link.of_ps(cost.time.0));
            }
            (rank, class.program.transfers[transfer], cost, class.program)
        });
        let [(from, sent, sending, program), (to, expected, receiving, _)] = ends;
        if sent.bytes != expected.bytes {
            self.failure = Some(EngineError::Sizes {
                group: program.group(sent.group).name.clone(),
                sender: self.cast.ranks[from as usize].rank,
                sent: sent.bytes,
                receiver: self.cast.ranks[to as usize].rank,
                expected: expected.bytes,
            });
        }
        let slows = program.group(sent.group).slows;
        for (flight, mate, rank) in [(sender, receiver, from), (receiver, sender, to)] {
            self.change_comms(rank, 1, slows);
            self.exchanges.flights[flight as usize].mate = mate;
            let poster = self.poster(flight);
            let batch = &mut self.exchanges.batches[poster as usize];
            batch.start.get_or_insert(self.now);
            if batch.running == 0 {
                batch.since = self.now;
            }
            batch.running += 1;
        }
        let flight = &mut self.exchanges.flights[sender as usize];
        (flight.use_of, flight.outer) = (sending.use_of, sending.outer);
        let uses = flight.use_of.iter_mut().chain(&mut flight.outer);
        for (most, part) in uses.zip(receiving.use_of.into_iter().chain(receiving.outer)) {
            *most = if part > *most { part } else { *most };
        }
        flight.running.begin(sending.time.0.max(receiving.time.0), self.now);
        flight.begun = self.now;
    }

    /// A message has arrived.
    pub(super) fn end_transfer(&mut self, sender: u32) {
        let flight = &mut self.exchanges.flights[sender as usize];
        flight.running.scheduled = false;
        let (mate, transfer, begun) = (flight.mate, flight.transfer, flight.begun);
        let from = self.poster(sender) / self.width;
        let program = self.job.classes[self.ranks[from as usize].class as usize].program;
        let slows = program.group(program.transfers[transfer as usize].group).slows;
        for index in [sender, mate] {
            let poster = self.poster(index);
            self.note_message(index, self.now - begun);
            self.change_comms(poster / self.width, -1, slows);
            let flight = &mut self.exchanges.flights[index as usize];
            (flight.mate, flight.ended) = (NONE, true);
            let batch = &mut self.exchanges.batches[poster as usize];
            batch.running -= 1;
            batch.open -= 1;
            if batch.running == 0 {
                batch.busy += self.now - batch.since;
            }
            if batch.open == 0 {
                self.end_exchange(poster);
            }
        }
    }

    /// Notes how long a message took, if durations are asked for.
    fn note_message(&mut self, flight: u32, took: u64) {
        let poster = self.poster(flight);
        let Rank { class, watched, .. } = self.ranks[(poster / self.width) as usize];
        let (Some(noted), true) = (&mut self.noted, watched) else { return };
        let Actor { at, step, .. } = self.actors[poster as usize];
        let plan = &self.plans[class as usize];
        let StreamOp::Exchange { issue, .. } = plan.ops[at as usize] else {
            unreachable!("the stream is busy with an exchange");
        };
        let leg = plan.issues[issue as usize].first + (flight - poster * self.exchanges.width);
        noted.legs[class as usize].push((step, leg, took));
    }

    /// All messages of a stream's exchange have ended.
    fn end_exchange(&mut self, actor: u32) {
        let Batch { start, busy, .. } = self.exchanges.batches[actor as usize];
        let state = self.actors[actor as usize];
        let rank = &self.ranks[(actor / self.width) as usize];
        let class = rank.class as usize;
        let StreamOp::Exchange { issue, scope } = self.plans[class].ops[state.at as usize] else {
            unreachable!("the stream is busy with an exchange");
        };
        let exchange = self.plans[class].issues[issue as usize].exchange;
        if rank.watched {
            let times = self.busy_at(class, state.step);
            self.busy[times].exchange[exchange as usize] += Time(busy);
            self.busy[times].exchange_waiting[exchange as usize] += Time(self.now - state.reached - busy);
        }
        self.span(actor, start.unwrap_or(self.now), What::Exchange(ExchangeId(exchange)), scope);
        self.leave(actor);
    }

    /// The ends of a stream's exchange whose other ends have not come: transfers of its class.
    pub(super) fn unmet(&self, actor: u32) -> impl Iterator<Item = TransferId> {
        let flights = &self.exchanges.flights[self.exchanges.of(actor)];
        flights.iter().filter(|flight| !flight.ended && flight.mate == NONE).map(|flight| TransferId(flight.transfer))
    }
}
