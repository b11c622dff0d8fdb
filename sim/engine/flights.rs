//! Messages on their way: the sends and receives that streams have posted, and which belong together.
//!
//! Which send belongs to which receive is known beforehand. NCCL matches the messages from one rank to another in the order
//! in which their hosts issue them on a communicator; so the n-th send of a *channel* meets its n-th receive, whenever
//! and on whatever streams the two get their turn.
//!
//! A *flight* is one end of a message that a stream has posted; a stream has one exchange at a time, so there are as many
//! flights for each stream as the largest exchange has ends. While a message runs, the flight of its sender keeps the work.

use crate::hardware::OUTER;
use crate::network::LEVELS;
use crate::program::Direction;

use super::cast::Cast;
use super::parts::{NONE, Running};
use super::plan::{Leg, Plan};

/// One end of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) transfer: u32,
    /// Which message of its channel it is.
    pub(super) turn: u32,
    /// The other end, while the message runs.
    pub(super) mate: u32,
    /// The next that awaits its other end in the channel.
    pub(super) next: u32,
    pub(super) direction: Direction,
    pub(super) ended: bool,
    /// The slower end's time alone \[ps\], and the largest use of each level; of a sender.
    pub(super) use_of: [f64; LEVELS],
    pub(super) outer: [f64; OUTER],
    pub(super) running: Running,
    /// When the message began; of a sender \[ps\].
    pub(super) begun: u64,
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
    pub(super) width: u32,
    pub(super) flights: Vec<Flight>,
    /// By actor.
    pub(super) batches: Vec<Batch>,
    /// Transfers of each rank, and the channel of each, rank after rank.
    pub(super) transfers: u32,
    pub(super) channel_of: Vec<u32>,
    /// The first flight that awaits its other end, by channel.
    pub(super) awaiting: Vec<u32>,
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
            outer: [0.0; OUTER],
            running: Running::NOTHING,
            begun: 0,
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
            flight.begun += by;
            flight.turn = flight.turn.wrapping_add(turns(index / width, flight.transfer));
        }
    }

    /// Takes from a channel the flight that is the other end of `turn`, if it is there.
    pub(super) fn take(&mut self, channel: usize, turn: u32, direction: Direction) -> Option<u32> {
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
