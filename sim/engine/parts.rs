//! The parts that a run's state is made of, and the events that change them.
//!
//! An *actor* is a stream or a host. A *meeting* is the place where the members of one group meet on one stream: there is
//! one for each copy of the group, and it is used again for each collective in turn. That is enough, because a stream
//! cannot pass a collective before all members have reached it.

use crate::hardware::OUTER;
use crate::network::LEVELS;
use crate::units::Time;

use super::pace::Pace;
use super::spent::Spent;

/// No actor, no meeting.
pub(super) const NONE: u32 = u32::MAX;

/// Something that becomes due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A host has paid for an action that it could not do ahead of time.
    Host { rank: u32 },
    /// A stream's next operation has been issued.
    Ready { actor: u32 },
    /// A kernel ends, unless its pace has changed since (the versions differ).
    Kernel { actor: u32, version: u32 },
    /// A collective ends, unless its pace has changed since.
    Comm { meeting: u32, version: u32 },
    /// A message arrives, unless its pace has changed since.
    Transfer { flight: u32, version: u32 },
    /// An event becomes visible to those who wait.
    Visible { rank: u32, slot: u32 },
}

/// What an actor does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// A stream: has nothing to do yet. A host: pays for its next action.
    Idle,
    /// Waits for an event.
    Event { slot: u32 },
    /// Runs a kernel.
    Kernel,
    /// Waits at a meeting for the others, or takes part in the collective.
    Meeting { meeting: u32 },
    /// Has posted sends and receives, and not all have ended.
    Exchange,
    /// A host: waits for room in a stream's queue.
    Room { stream: u8 },
    /// A host: has issued all steps.
    Done,
}

/// Work that is being done at some pace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// Left at `since` \[ps at full speed\].
    pub(super) work: u64,
    pub(super) since: u64,
    pub(super) pace: Pace,
    /// Stamps the event of its end; events with an older stamp are void.
    pub(super) version: u32,
    /// Whether such an event is in the queue.
    pub(super) scheduled: bool,
}

impl Running {
    pub(super) const NOTHING: Running = Running { work: 0, since: 0, pace: Pace::FULL, version: 0, scheduled: false };

    /// Begins `work` now; its end is scheduled when speeds are set.
    pub(super) fn begin(&mut self, work: u64, now: u64) {
        *self = Running { work, since: now, pace: Pace::FULL, scheduled: false, version: self.version };
    }

    /// Goes on at `pace`; returns the new end if it has changed.
    pub(super) fn go_on(&mut self, pace: Pace, now: u64) -> Option<u64> {
        if self.scheduled && self.pace == pace {
            return None;
        }
        self.work = self.work.saturating_sub(self.pace.done_in(now - self.since));
        self.since = now;
        self.pace = pace;
        self.scheduled = true;
        self.version = self.version.wrapping_add(1);
        Some(now + pace.time_for(self.work))
    }
}

/// A stream or a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Actor {
    pub(super) doing: Doing,
    /// Next operation: an index into the plan's `ops` (streams) or `host` (hosts).
    pub(super) at: u32,
    /// The first operation of a step.
    pub(super) first: u32,
    pub(super) step: u32,
    /// Kernels, collectives and exchanges issued and not ended.
    pub(super) queued: u32,
    /// The next actor that waits for the same slot.
    pub(super) next_waiter: u32,
    /// When the stream reached the operation it is busy with, or when the host's next action is due.
    pub(super) reached: u64,
    /// The kernel it runs.
    pub(super) running: Running,
}

/// A rank.
#[derive(Clone, Debug)]
pub(super) struct Rank {
    pub(super) class: u32,
    /// Whether it is the first of its class, whose busy times and marks are kept.
    pub(super) watched: bool,
    /// Whether its kernels go at the pace they have beside a collective.
    pub(super) slowed: bool,
    /// Whether its collectives have changed since speeds were set.
    pub(super) dirty: bool,
    /// What running kernels take of the processors.
    pub(super) filling: u32,
    /// Whether that has changed, from or to more than all of them, since speeds were set.
    pub(super) crowded: bool,
    /// Running collectives and messages that slow kernels beside them.
    pub(super) comms: u32,
    pub(super) spent: Spent,
    /// Last search that came by.
    pub(super) visit: u32,
}

/// Where the members of a group meet on a stream.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    pub(super) group: u16,
    pub(super) stream: u8,
    /// Members that have arrived.
    pub(super) arrived: u32,
    /// Its members, from and to where among [`Meetings::members`].
    pub(super) members: (u32, u32),
    /// The member that came first, and what it issued.
    pub(super) opener: u32,
    pub(super) comm: u32,
    /// The slowest member's time alone \[ps\], and the largest use of each level.
    pub(super) work: u64,
    pub(super) use_of: [f64; LEVELS],
    pub(super) outer: [f64; OUTER],
    pub(super) start: u64,
    pub(super) running: Running,
    /// Last search that came by, and the flow it made of this.
    pub(super) visit: u32,
    pub(super) flow: u32,
}

/// When a host and the default stream passed a mark \[ps\].
pub(super) type Passed = (Option<Time>, Option<Time>);
