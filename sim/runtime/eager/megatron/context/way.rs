//! A way to share a sequence, and the ranks that do.

use crate::program::{GroupId, StreamId};

/// What ranks have parts of while they attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Of the tokens.
    Tokens,
    /// Of the heads.
    Heads,
    /// Those of an inner group of the heads, and such groups of the tokens.
    Both,
}

/// A way of the table.
#[derive(Clone, Copy)]
pub struct Way {
    /// `--cp-comm-type`.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What each rank has parts of.
    pub parts: Parts,
    /// Whether it knows sliding windows (`attn_forward_func_with_cp`).
    pub windows: bool,
}

impl PartialEq for Way {
    fn eq(&self, other: &Way) -> bool {
        self.name == other.name
    }
}

impl Eq for Way {}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

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
    pub way: &'static Way,
    /// Those with other tokens.
    pub ring: Ring,
    /// Those with other heads, if any.
    pub heads: Option<Heads>,
}
