//! What a run found: the step time, where it went, and (on request) every span.

use std::fmt;

use crate::program::{CommId, ExchangeId, KernelId, Owner, ScopeId, StreamId};
use crate::units::Time;

/// What ran in a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A kernel.
    Kernel(KernelId),
    /// A collective.
    Comm(CommId),
    /// Sends and receives.
    Exchange(ExchangeId),
}

/// A rank that was simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// Which rank of the job; in a folded run the first of its class.
    pub rank: u32,
    /// Its class.
    pub class: u32,
    /// How many ranks it stands for, itself among them.
    pub stands_for: u32,
}

/// Something that ran on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The rank; in a folded run the first of its class.
    pub rank: u32,
    /// The stream.
    pub stream: StreamId,
    /// When the stream reached it \[ps\]; a collective then waits for its other members, a message for its other end.
    pub reached: Time,
    /// When it began to run; of several messages, when the first did \[ps\].
    pub start: Time,
    /// When it ended \[ps\].
    pub end: Time,
    /// What ran.
    pub what: What,
    /// The module or region it belongs to.
    pub scope: ScopeId,
    /// The step, from 0.
    pub step: u32,
}

/// Where a rank's time went; the parts sum to the whole exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// A kernel of a pass other than communication ran \[ps\].
    pub compute: Time,
    /// No such kernel ran, but a collective, a message or a kernel of the communication pass did \[ps\].
    pub exposed_communication: Time,
    /// No such kernel ran, and what the default stream waited for was other ranks, whatever communication ran in the
    /// background \[ps\].
    pub bubble: Time,
    /// Nothing ran and the default stream was empty: the host was behind \[ps\].
    pub host_bound: Time,
    /// Nothing ran otherwise: an event had happened and was not yet visible \[ps\].
    pub waiting: Time,
}

impl Breakdown {
    /// The sum of the parts.
    pub fn total(&self) -> Time {
        self.compute + self.exposed_communication + self.bubble + self.host_bound + self.waiting
    }
}

impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Breakdown { compute, exposed_communication, bubble, host_bound, waiting } = self;
        write!(f, "compute {compute}, exposed communication {exposed_communication}, bubble {bubble}, ")?;
        write!(f, "host-bound {host_bound}, waiting {waiting}")
    }
}

/// How long each part ran in the last step on one rank, overlapped or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// By `KernelId`, from start to end, slowdown included \[ps\].
    pub kernel: Vec<Time>,
    /// By part of the model ([`Owner::ALL`]), the same of its kernels, but for those of the communication pass \[ps\].
    pub owner: [Time; Owner::COUNT],
    /// By `CommId`, from start to end, sharing included \[ps\].
    pub comm: Vec<Time>,
    /// By `CommId`, from being reached to start: waiting for the other members \[ps\].
    pub comm_waiting: Vec<Time>,
    /// By `KernelId`, the part of the exposed communication that a kernel of the communication pass is blamed for \[ps\].
    pub kernel_exposed: Vec<Time>,
    /// By `CommId`, the part of the exposed communication that a collective is blamed for \[ps\]. Blamed is what the
    /// default stream waits for; if that is nothing that runs, the lowest stream on which anything does. So kernels,
    /// collectives and exchanges sum to [`Breakdown::exposed_communication`] of the rank exactly.
    pub comm_exposed: Vec<Time>,
    /// By `ExchangeId`, as long as any of its messages ran \[ps\].
    pub exchange: Vec<Time>,
    /// By `ExchangeId`, the rest of the time from being reached to the end: waiting for the other ends \[ps\].
    pub exchange_waiting: Vec<Time>,
    /// By `ExchangeId`, the part of the exposed communication that it is blamed for \[ps\].
    pub exchange_exposed: Vec<Time>,
}

impl Busy {
    /// Adds what came between two moments, so many times, but for what is exposed. Of two steps the later one may have waited less: a
    /// difference may be negative, and the sum of all is not.
    pub(super) fn add(&mut self, from: &Busy, to: &Busy, times: u64) {
        let add = |sum: &mut [Time], from: &[Time], to: &[Time]| {
            for (sum, (from, to)) in sum.iter_mut().zip(from.iter().zip(to)) {
                sum.0 = sum.0.wrapping_add(to.0.wrapping_sub(from.0).wrapping_mul(times));
            }
        };
        add(&mut self.kernel, &from.kernel, &to.kernel);
        add(&mut self.owner, &from.owner, &to.owner);
        add(&mut self.comm, &from.comm, &to.comm);
        add(&mut self.comm_waiting, &from.comm_waiting, &to.comm_waiting);
        add(&mut self.exchange, &from.exchange, &to.exchange);
        add(&mut self.exchange_waiting, &from.exchange_waiting, &to.exchange_waiting);
    }
}

/// When a mark was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkTime {
    /// The class of ranks, whose first rank was watched.
    pub class: u32,
    /// The step, from 0.
    pub step: u32,
    /// Index into the program's marks.
    pub mark: u32,
    /// When the host passed it \[ps\].
    pub host: Time,
    /// When the default stream reached it \[ps\]; only for the end of a phase.
    pub device: Option<Time>,
}

/// What happened when: the end of each simulated step, and where the last one went on each simulated rank. What ran on which stream is
/// [`Prediction::ran`](crate::scenario::Prediction::ran).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Length of the last step \[ps\]: the time between the ends of the last two steps. A step ends when the hosts of
    /// all ranks have issued the whole of it and all streams have finished it. The first step begins at zero.
    pub step: Time,
    /// The end of each step \[ps\].
    pub ends: Vec<Time>,
    /// The ranks that were simulated: one of each class if folded, else all.
    pub ranks: Vec<Simulated>,
    /// Where the last step went, by simulated rank; each sums to `step`.
    pub breakdown: Vec<Breakdown>,
    /// Busy time of each part in the last step, by class of ranks, on the first rank of the class.
    #[doc(hidden)]
    pub busy: Vec<Busy>,
    /// When marks were passed, by class, step and mark.
    #[doc(hidden)]
    pub marks: Vec<MarkTime>,
    /// Everything that ran, by rank, stream and start; empty unless recorded.
    #[doc(hidden)]
    pub spans: Vec<Span>,
    /// When the host began the last step \[ps\], by class (on its first rank); empty unless recorded.
    #[doc(hidden)]
    pub host_begins: Vec<Time>,
    /// When each instruction of the last step took effect on the host \[ps\], by class (on its first rank) and by index
    /// in the program's `step`; empty unless recorded. A launch takes effect when it has been paid for and the stream has
    /// room, a wait when it is over, everything else when it has been paid for.
    #[doc(hidden)]
    pub host_times: Vec<Vec<Time>>,
    /// Number of events processed.
    #[doc(hidden)]
    pub events: u64,
}

impl Timeline {
    /// The share of all ranks' time that was spent waiting for other ranks.
    pub fn bubble(&self) -> f64 {
        let ranks = || self.ranks.iter().map(|rank| u128::from(rank.stands_for));
        let bubble: u128 = ranks().zip(&self.breakdown).map(|(count, parts)| count * u128::from(parts.bubble.0)).sum();
        let all = ranks().sum::<u128>() * u128::from(self.step.0);
        if all == 0 { 0.0 } else { bubble as f64 / all as f64 }
    }

    /// Whether the last two steps took equally long, to the picosecond.
    pub fn is_steady(&self) -> bool {
        match self.ends[..] {
            [.., before, start, end] => end - start == start - before,
            _ => false,
        }
    }
}
