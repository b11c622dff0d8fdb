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

impl Tick {
    /// The registers that it reads or writes, each with its class.
    pub(super) fn registers(self, tape: &Tape, mut see: impl FnMut(u32, Register)) {
        match self {
            Tick::HostWait { class, event } => see(class, event),
            Tick::Keep { class, into } => see(class, into),
            Tick::Kernel { lane, issued: Issued::At(register), .. }
            | Tick::Arrive { lane, issued: Issued::At(register) } => {
                see(lane.class, register);
            }
            Tick::Record { lane, issued, into, .. } => {
                see(lane.class, into);
                if let Issued::At(register) = issued {
                    see(lane.class, register);
                }
            }
            Tick::Wait { lane, event } => see(lane.class, event),
            Tick::Post { lane, into } => see(lane.class, into),
            Tick::Leave { lane, at: Some(register) } => see(lane.class, register),
            Tick::Message { message } => {
                let Message { from, to, .. } = tape.messages[message as usize];
                [from, to].into_iter().for_each(|end| see(end.lane.class, end.until));
            }
            Tick::Pay { .. }
            | Tick::Room { .. }
            | Tick::Kernel { .. }
            | Tick::Arrive { .. }
            | Tick::Meet { .. }
            | Tick::Leave { at: None, .. } => {}
        }
    }
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

/// Where a round begins on a tape, and what is kept there.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// The next tick.
    pub(super) tick: usize,
    /// By class: what is needed later, and the register that holds it.
    pub(super) kept: Vec<Vec<(Kept, Register)>>,
    /// By class and stream: the next operation.
    pub(super) places: Vec<Vec<usize>>,
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// When an operation was issued: the stream, and how many others have to be reached before.
    Issued { stream: u32, place: u32 },
    /// An event: its slot, and how many the class had recorded.
    Event { slot: i64, recorded: i64 },
    /// The end of an exchange on a stream.
    Exchange { stream: u32 },
}

/// A round that is played so many times more.
#[derive(Debug)]
pub(super) struct Again {
    /// Its ticks.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) times: u32,
    /// By class: swaps after which its registers hold what they held when it began.
    pub(super) swaps: Vec<Vec<(Register, Register)>>,
    /// By class: registers that hold something of the rounds when it begins.
    pub(super) moving: Vec<Vec<Register>>,
    /// By class and stream: whether something happens there, and how many operations leave it.
    pub(super) touched: Vec<Vec<bool>>,
    pub(super) leaves: Vec<Vec<u64>>,
    /// Who waits for whom in it.
    pub(super) meetings: Vec<Meeting>,
}

/// Who waits for whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Meeting {
    /// Classes in the copies of a group.
    Group { group: u16, classes: Vec<u32> },
    /// The ends of a message: an index into [`Tape::messages`].
    Message { message: u32 },
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
    /// What of it is played more than once.
    pub(super) again: Option<Again>,
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
