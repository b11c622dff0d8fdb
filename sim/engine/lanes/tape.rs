//! A tape: all that the ranks of a job do in one step, in an order in which everything comes after what it waits for.
//!
//! A tick is one thing that all ranks of a class do. A *register* is a time of each of its ranks that is needed later: when an operation
//! was issued that its stream could not yet reach, or when an event was recorded.

use super::super::ranks::Bound;

/// A register of a class.
pub(super) type Register = u32;

/// When an operation was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Issued {
    /// Now: its host stands there.
    Now,
    /// Some time ago.
    At(Register),
}

/// A stream of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) class: u32,
    pub(super) stream: u32,
}

/// One thing that all ranks of a class do, or of several that meet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tick {
    /// The host pays for calls.
    Pay { class: u32, cost: f64 },
    /// The host waits until the stream has room, and takes a place in it.
    Room { lane: Lane },
    /// The host waits for an event.
    HostWait { class: u32, event: Register },
    /// What the host issues now is needed later.
    Keep { class: u32, into: Register },
    /// A kernel runs.
    Kernel { lane: Lane, issued: Issued, op: u32, bound: Bound },
    /// An event happens, and is seen so much later.
    Record { lane: Lane, issued: Issued, later: f64, into: Register },
    /// The stream waits for an event.
    Wait { lane: Lane, event: Register },
    /// The stream comes to a collective or to an exchange.
    Arrive { lane: Lane, issued: Issued },
    /// All classes of a collective have arrived; an index into [`Tape::meets`].
    Meet { meet: u32 },
    /// The messages of an exchange will end here at the latest known time.
    Post { lane: Lane, into: Register },
    /// Both ends of a message are there; an index into [`Tape::messages`].
    Message { message: u32 },
    /// The stream leaves a collective, or an exchange whose messages ended then.
    Leave { lane: Lane, at: Option<Register> },
}

/// A collective: who takes part.
#[derive(Clone, Debug)]
pub(super) struct Meet {
    pub(super) group: u16,
    /// Each class with its stream and the operation of its plan.
    pub(super) parts: Vec<(Lane, u32)>,
}

/// One end of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) lane: Lane,
    /// Where its exchange's end is kept.
    pub(super) until: Register,
    /// The end's place among those of its plan, and the transfer of its class.
    pub(super) leg: u32,
    pub(super) transfer: u32,
}

/// A message between two classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) group: u16,
    pub(super) from: End,
    pub(super) to: End,
}

/// A step of a job, in order.
#[derive(Debug, Default)]
pub(super) struct Tape {
    pub(super) ticks: Vec<Tick>,
    pub(super) meets: Vec<Meet>,
    pub(super) messages: Vec<Message>,
    /// By class: registers, and for each stream the places of its queue that must be remembered.
    pub(super) registers: Vec<u32>,
    pub(super) queues: Vec<Vec<u32>>,
    /// Names of the groups.
    pub(super) groups: Vec<String>,
}

/// A collective or a message of a watched rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The rank.
    pub rank: u32,
    /// The group, by its place in [`super::Played::waits`].
    pub group: u32,
    /// When it came, from the beginning of the last step \[ps\].
    pub came: i64,
    /// When all others had come.
    pub began: i64,
    /// When it ended.
    pub ended: i64,
}
