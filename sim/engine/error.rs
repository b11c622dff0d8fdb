//! What can be wrong with a run, and who waits for whom when nothing moves.

use std::fmt;

use crate::program::{Collective, Direction, StreamId};
use crate::units::{Bytes, Time};

/// Why a program could not be run to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// Costs of another program.
    #[error("{costs} costs for {parts} {what}: price every one of the program's {what}, in order")]
    CostCount {
        /// Kernels or collectives.
        what: &'static str,
        /// Costs given.
        costs: usize,
        /// Parts in the program.
        parts: usize,
    },
    /// A slowdown below one.
    #[error("{name} has a slowdown of {slowdown}: expected a finite factor of 1 or more")]
    Slowdown {
        /// The kernel.
        name: &'static str,
        /// The factor found.
        slowdown: f64,
    },
    /// A share of the fabric that is no share.
    #[error("{kind:?} uses {part} of a fabric level: expected a fraction from 0 to 1")]
    Use {
        /// The collective.
        kind: Collective,
        /// The fraction found.
        part: f64,
    },
    /// Options that allow nothing to run.
    #[error("{option} is 0: expected 1 or more")]
    Zero {
        /// The option.
        option: &'static str,
    },
    /// Ranks that differ and do not exchange evenly.
    #[error("ranks that differ are simulated step by step, and here a step sends other messages than it receives")]
    Uneven,
    /// A group whose copies do not tile the ranks.
    #[error(
        "group {group} has {size} ranks {stride} apart in blocks of {block}, but the job has {ranks} ranks: \
         the number of ranks must be a multiple of the block, and a block holds from 1 to {stride} copies"
    )]
    Group {
        /// The group.
        group: String,
        /// Its size.
        size: u32,
        /// Its stride.
        stride: u32,
        /// Its block.
        block: u32,
        /// Ranks in the job.
        ranks: u32,
    },
    /// A rank takes part in what it is no member of.
    #[error("rank {rank} of class {class} issues on group {group}, to which it does not belong")]
    Stranger {
        /// The group.
        group: String,
        /// The class whose program does.
        class: usize,
        /// Its first rank outside.
        rank: u32,
    },
    /// A peer that is none.
    #[error("a message on group {group} names a peer {ahead} places ahead: expected from 1 to {last}")]
    Peer {
        /// The group.
        group: String,
        /// Places found.
        ahead: u32,
        /// Largest number of places.
        last: u32,
    },
    /// Classes of ranks that do not make one job.
    #[error(
        "class {class} of the job has {found} {what} where class 0 has {expected}: classes share one communicator table"
    )]
    Classes {
        /// The class that differs.
        class: usize,
        /// In what.
        what: &'static str,
        /// In the class that differs.
        found: usize,
        /// In the first class.
        expected: usize,
    },
    /// A rank without a class.
    #[error("{found} ranks have a class but the job has {expected} ranks: name a class from 0 to {last} for each")]
    ClassOf {
        /// Ranks with a valid class.
        found: usize,
        /// Ranks in the job.
        expected: u32,
        /// Largest class.
        last: usize,
    },
    /// Folding of ranks that differ.
    #[error(
        "ranks {first} and {other} are of class {class}, but over group {group} the first meets {meets} and the other \
         {instead}: give them classes of their own, or run the job with fold = false"
    )]
    Fold {
        /// The class.
        class: u32,
        /// The group that tells its ranks apart.
        group: String,
        /// Its first rank.
        first: u32,
        /// Classes that it meets.
        meets: String,
        /// A rank that meets others.
        other: u32,
        /// Classes that it meets.
        instead: String,
    },
    /// A class that no rank belongs to.
    #[error("no rank belongs to class {class}: leave it out, or run the job with fold = false")]
    NoRanks {
        /// The class.
        class: usize,
    },
    /// Members of one group issue different collectives.
    #[error(
        "rank {rank} issues {found} where rank {first} issues {expected} on group {group}: \
         all members must issue the same collectives in the same order"
    )]
    Mismatch {
        /// The group.
        group: String,
        /// The rank that came first.
        first: u32,
        /// What it issued.
        expected: String,
        /// The rank that came later.
        rank: u32,
        /// What it issued.
        found: String,
    },
    /// The two ends of a message differ.
    #[error(
        "rank {sender} sends {} B to rank {receiver}, which expects {} B, on group {group}: \
         both ends of a message must have one size", .sent.0, .expected.0
    )]
    Sizes {
        /// The group.
        group: String,
        /// The rank that sends.
        sender: u32,
        /// How much.
        sent: Bytes,
        /// The rank that receives.
        receiver: u32,
        /// How much it expects.
        expected: Bytes,
    },
    /// Nothing can move, and not everything is done.
    #[error(
        "deadlock at {time}, {} hosts and streams wait:{}",
        .waits.len(), .waits.iter().take(SHOWN).map(|wait| format!("\n  {wait}")).collect::<String>()
    )]
    Deadlock {
        /// When.
        time: Time,
        /// Everyone who waits, by rank.
        waits: Vec<Waiting>,
    },
}

/// Lines of a deadlock that are printed.
const SHOWN: usize = 16;

/// One who waits in a deadlock, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: u32,
    /// The stream, or the host if none.
    pub stream: Option<(StreamId, &'static str)>,
    /// The step, from 0.
    pub step: u32,
    /// The module or region it waits in.
    pub scope: String,
    /// For whom or what.
    pub waits_for: WaitsFor,
}

/// What someone waits for in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// An event that another stream has not reached.
    Event {
        /// The event.
        event: u32,
        /// The stream it was recorded on.
        stream: &'static str,
        /// The scope it was recorded in.
        scope: String,
    },
    /// What is in front of it in the device's only queue, and has not begun.
    Turn {
        /// Its stream.
        stream: &'static str,
        /// The scope it was issued in.
        scope: String,
    },
    /// The other members of a collective.
    Members {
        /// Which collective.
        kind: Collective,
        /// Its group.
        group: String,
        /// Members that have not arrived.
        missing: Vec<u32>,
    },
    /// The other ends of messages.
    Peers {
        /// Those that have not come.
        missing: Vec<MissingEnd>,
    },
    /// Room in a stream's queue.
    Room {
        /// The stream.
        stream: &'static str,
    },
}

/// An end of a message that does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingEnd {
    /// The rank that should issue it.
    pub rank: u32,
    /// What it should do.
    pub to_do: Direction,
    /// How much.
    pub bytes: Bytes,
    /// On which group.
    pub group: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { rank, stream, step, scope, waits_for } = self;
        match stream {
            Some((_, name)) => write!(f, "rank {rank} stream {name}")?,
            None => write!(f, "rank {rank} host")?,
        }
        write!(f, " (step {step}, {scope}) waits for ")?;
        match waits_for {
            WaitsFor::Event { event, stream, scope } => write!(f, "event {event} of stream {stream} ({scope})"),
            WaitsFor::Turn { stream, scope } => {
                write!(f, "what is in front of it in the device's one queue, of stream {stream} ({scope})")
            }
            WaitsFor::Members { kind, group, missing } => {
                write!(f, "rank")?;
                for (index, rank) in missing.iter().take(SHOWN).enumerate() {
                    write!(f, "{} {rank}", if index > 0 { "," } else { "" })?;
                }
                if missing.len() > SHOWN {
                    write!(f, " and {} more", missing.len() - SHOWN)?;
                }
                write!(f, " in {kind:?} on group {group}")
            }
            WaitsFor::Peers { missing } => {
                for (index, MissingEnd { rank, to_do, bytes, group }) in missing.iter().take(SHOWN).enumerate() {
                    let and = if index > 0 { " and " } else { "" };
                    write!(f, "{and}rank {rank} to {} {} B on group {group}", to_do.name(), bytes.0)?;
                }
                Ok(())
            }
            WaitsFor::Room { stream } => write!(f, "room in stream {stream}"),
        }
    }
}
