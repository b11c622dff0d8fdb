//! Sends and receives: a stream posts all of an exchange's at once, each runs when its other end is there, and the stream
//! goes on when all have ended.
//!
//! Which send belongs to which receive is known beforehand. NCCL matches the messages from one rank to another in the order
//! in which their hosts issue them on a communicator; so the n-th send of a *channel* meets its n-th receive, whenever
//! and on whatever streams the two get their turn.
//!
//! A *flight* is one end of a message that a stream has posted; a stream has one exchange at a time, so there are as many
//! flights for each stream as the largest exchange has ends. While a message runs, the flight of its sender keeps the work.

use crate::network::LEVELS;
use crate::program::{Direction, ExchangeId, TransferId};
use crate::units::Time;

use super::cast::Cast;
use super::plan::{Issue, Leg, Plan, StreamOp};
use super::state::{Doing, Engine, NONE, Running};
use super::{EngineError, What};

/// One end of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) transfer: u32,
    /// Which message of its channel it is.
    turn: u32,
    /// The other end, while the message runs.
    pub(super) mate: u32,
    /// The next that awaits its other end in the channel.
    next: u32,
    pub(super) direction: Direction,
    pub(super) ended: bool,
    /// The slower end's time alone \[ps\], and the largest use of each level; of a sender.
    pub(super) use_of: [f64; LEVELS],
    pub(super) running: Running,
    /// Last search that came by, and the flow it made of this.
    pub(super) visit: u32,
    pub(super) flow: u32,
}

/// The exchange that a stream is busy with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// Ends that have not ended.
    pub(super) open: u32,
    /// Of these, the ones that run.
    pub(super) running: u32,
    /// When the first began \[ps\].
    pub(super) start: Option<u64>,
    /// How long any have run, up to the moment since which some run without a break \[ps\].
    pub(super) busy: u64,
    pub(super) since: u64,
}

/// All exchanges of a run.
#[derive(Clone, Debug)]
pub(super) struct Exchanges {
    /// Flights of each stream.
    width: u32,
    pub(super) flights: Vec<Flight>,
    /// By actor.
    pub(super) batches: Vec<Batch>,
    /// Transfers of each rank, and the channel of each, rank after rank.
    transfers: u32,
    channel_of: Vec<u32>,
    /// The first flight that awaits its other end, by channel.
    awaiting: Vec<u32>,
}

impl Exchanges {
    /// Room for the exchanges of `actors` streams and hosts.
    pub(super) fn new(cast: &Cast<'_>, plans: &[Plan], transfers: u32, actors: usize) -> Exchanges {
        let width = plans.iter().flat_map(|plan| &plan.issues).map(|issue| issue.count).max().unwrap_or(0);
        let (channel_of, channels) = cast.channels(transfers);
        let flight = Flight {
            transfer: NONE,
            turn: 0,
            mate: NONE,
            next: NONE,
            direction: Direction::Send,
            ended: true,
            use_of: [0.0; LEVELS],
            running: Running::NOTHING,
            visit: 0,
            flow: NONE,
        };
        let batch = Batch { open: 0, running: 0, start: None, busy: 0, since: 0 };
        Exchanges {
            width,
            flights: vec![flight; actors * width as usize],
            batches: vec![batch; if width > 0 { actors } else { 0 }],
            transfers,
            channel_of,
            awaiting: vec![NONE; channels],
        }
    }

    /// Whether every channel is sent as many messages in a step as are received from it.
    pub(super) fn is_even(&self, ranks: &[u32], plans: &[Plan]) -> bool {
        let mut each = vec![[0; 2]; self.awaiting.len()];
        for (rank, &class) in ranks.iter().enumerate() {
            for &Leg { transfer, direction, .. } in &plans[class as usize].legs {
                let channel = self.channel_of[rank * self.transfers as usize + transfer as usize];
                each[channel as usize][usize::from(direction == Direction::Receive)] += 1;
            }
        }
        each.iter().all(|[sent, received]| sent == received)
    }

    /// The flights of a stream.
    pub(super) fn of(&self, actor: u32) -> std::ops::Range<usize> {
        (actor * self.width) as usize..((actor + 1) * self.width) as usize
    }

    /// Goes on at a later time, with later messages: `turns` says how many later, by actor and transfer.
    pub(super) fn go_on(&mut self, by: u64, turns: impl Fn(u32, u32) -> u32) {
        for batch in &mut self.batches {
            batch.start = batch.start.map(|start| start + by);
            batch.since += by;
        }
        let width = self.width;
        for (flight, index) in self.flights.iter_mut().zip(0..).filter(|(flight, _)| flight.transfer != NONE) {
            flight.running.since += by;
            flight.turn = flight.turn.wrapping_add(turns(index / width, flight.transfer));
        }
    }

    /// Takes from a channel the flight that is the other end of `turn`, if it is there.
    fn take(&mut self, channel: usize, turn: u32, direction: Direction) -> Option<u32> {
        let mut before = NONE;
        let mut at = self.awaiting[channel];
        while at != NONE {
            let Flight { turn: other, direction: way, next, .. } = self.flights[at as usize];
            if other == turn && way != direction {
                match before {
                    NONE => self.awaiting[channel] = next,
                    before => self.flights[before as usize].next = next,
                }
                return Some(at);
            }
            (before, at) = (at, next);
        }
        None
    }
}

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
            (rank, class.program.transfers[transfer], class.costs.transfer[transfer], class.program)
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
        flight.use_of = sending.use_of;
        for (most, part) in flight.use_of.iter_mut().zip(receiving.use_of) {
            *most = if part > *most { part } else { *most };
        }
        flight.running.begin(sending.time.0.max(receiving.time.0), self.now);
    }

    /// A message has arrived.
    pub(super) fn end_transfer(&mut self, sender: u32) {
        let flight = &mut self.exchanges.flights[sender as usize];
        flight.running.scheduled = false;
        let (mate, transfer) = (flight.mate, flight.transfer);
        let from = self.poster(sender) / self.width;
        let program = self.job.classes[self.ranks[from as usize].class as usize].program;
        let slows = program.group(program.transfers[transfer as usize].group).slows;
        for index in [sender, mate] {
            let poster = self.poster(index);
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
