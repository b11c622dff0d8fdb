//! The ranks that share a sequence, and how.

use crate::plan::megatron::CpCommType;
use crate::program::{GroupId, StreamId};

/// Ranks that have parts of the tokens, as one of them sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The communicator.
    pub group: GroupId,
    /// How many ranks; where heads are distributed over all, 1.
    pub ranks: u32,
    /// The streams of messages with the next rank and with the previous one. Two ranks batch what they exchange, on the
    /// first, as are collectives.
    pub messages: [StreamId; 2],
    /// The stream whose pool odd steps take memory from.
    pub second: StreamId,
}

/// Ranks that have parts of the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The communicator.
    pub group: GroupId,
    /// How many ranks; 2 or more.
    pub ranks: u32,
    /// Its stream.
    pub stream: StreamId,
    /// The stream that puts in order what has arrived.
    pub second: StreamId,
}

/// The ranks that share a sequence under Transformer Engine, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The way.
    pub way: CpCommType,
    /// Those with other tokens.
    pub ring: Ring,
    /// Those with other heads, if any.
    pub heads: Option<Heads>,
}
