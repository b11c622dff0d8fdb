//! What a node's ranks take of its host's memory, held against what it has.

use std::fmt;

use strum::VariantArray;

use crate::hardware::Topology;
use crate::program::HostMemory;
use crate::units::Bytes;

/// What a rank's process takes besides what is counted: the interpreter, libraries, CUDA's own host memory (assumed).
const PROCESS: u64 = 4 << 30;

/// Memory of a node's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// What each rank takes.
    pub rank: HostMemory,
    /// Ranks of a node.
    pub ranks: u32,
    /// What the topology says that a node has; none: it does not say.
    pub capacity: Option<Bytes>,
}

impl Host {
    /// A rank's on a topology; none where it takes nothing of its host.
    pub(super) fn of(rank: HostMemory, topology: &Topology) -> Option<Host> {
        let host = Host { rank, ranks: topology.ranks_per_node(), capacity: topology.node.host_memory };
        (rank.all.0 > 0 || rank.files.0 > 0).then_some(host)
    }

    /// What all ranks of a node take \[B\].
    pub fn wanted(&self) -> Bytes {
        Bytes(self.rank.all.0.saturating_mul(self.ranks.into()))
    }

    /// Whether that is more than the node has; unknown where the topology does not say.
    pub fn lacks(&self) -> Option<bool> {
        self.capacity.map(|has| self.wanted() > has)
    }

    /// How much is missing \[B\].
    pub fn shortfall(&self) -> Bytes {
        self.capacity.map_or(Bytes(0), |has| self.wanted().saturating_sub(has))
    }

    /// What processes may take besides \[B\].
    pub fn doubt(&self) -> Bytes {
        Bytes(PROCESS * u64::from(self.ranks))
    }

    /// Whether it has room for the processes, too.
    pub fn suffices_beyond_doubt(&self) -> bool {
        self.capacity.is_some_and(|has| has.saturating_sub(self.doubt()) >= self.wanted())
    }
}

/// Whether a plan runs in the memory that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Verdict {
    /// However far what is not known is off.
    Yes,
    /// By less than what is not known.
    Perhaps,
    /// The device has room; the topology does not say what a node's host has.
    Unknown,
    /// It does not, by less than what is not known.
    Hardly,
    /// It does not.
    No,
}

impl Verdict {
    /// All verdicts, from yes to no.
    pub const ALL: &[Verdict] = Verdict::VARIANTS;
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Yes => "yes",
            Verdict::Perhaps => "perhaps",
            Verdict::Unknown => "unknown",
            Verdict::Hardly => "NO, but may",
            Verdict::No => "NO",
        })
    }
}
