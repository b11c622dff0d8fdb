//! One step of one rank as a list of what its device ran, whether it was predicted or measured.

use crate::program::Pass;
use crate::units::{Bytes, Time};

/// What kind of work ran, as far as a prediction and a profiler can both tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::VariantArray)]
pub enum Class {
    /// Dense matmuls.
    Matmul,
    /// Matmuls of groups of rows, as experts have them.
    GroupedMatmul,
    /// Fused attention.
    Attention,
    /// Norms, pointwise operators, softmax, casts and whatever else memory bounds.
    Memory,
    /// Kernels of the optimizer and of clipping.
    Optimizer,
    /// All-gathers.
    AllGather,
    /// Reduce-scatters.
    ReduceScatter,
    /// All-reduces.
    AllReduce,
    /// All-to-alls, and the dispatch and combine of experts.
    AllToAll,
    /// Broadcasts.
    Broadcast,
    /// Sends and receives.
    SendRecv,
    /// Exchanges whose name does not tell what they do.
    OtherExchange,
    /// Copies between host and device.
    Copy,
}

impl Class {
    /// All of them, in the order of reports.
    pub const ALL: &[Class] = <Class as strum::VariantArray>::VARIANTS;

    /// The name in reports, and in `--fail-above`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Matmul => "matmul",
            Class::GroupedMatmul => "grouped-matmul",
            Class::Attention => "attention",
            Class::Memory => "memory-bound",
            Class::Optimizer => "optimizer",
            Class::AllGather => "all-gather",
            Class::ReduceScatter => "reduce-scatter",
            Class::AllReduce => "all-reduce",
            Class::AllToAll => "all-to-all",
            Class::Broadcast => "broadcast",
            Class::SendRecv => "send-recv",
            Class::OtherExchange => "other-exchange",
            Class::Copy => "host-copy",
        }
    }

    /// Whether ranks exchange something: such a kernel may wait for others.
    pub fn is_exchange(self) -> bool {
        use Class::{AllGather, AllReduce, AllToAll, Broadcast, OtherExchange, ReduceScatter, SendRecv};
        matches!(self, AllGather | ReduceScatter | AllReduce | AllToAll | Broadcast | SendRecv | OtherExchange)
    }
}

/// What the two sides can be told apart by, beside the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// A matmul: the two sides of the result, the shorter first, and the length of the dot products. Who is transposed is not told.
    Matmul([u64; 3]),
    /// Attention: batch, queries, query heads and head dimension in ascending order, since layouts differ.
    Attention {
        /// The sorted dimensions.
        dims: [u64; 4],
        /// Backward or forward.
        backward: bool,
    },
    /// An exchange of so many bytes, as nccl-tests count them.
    Bytes(u64),
    /// Not told, or of no use: the name says enough.
    None,
}

impl Shape {
    /// That of a matmul with a result of `m` rows and `n` columns.
    pub fn matmul(m: u64, n: u64, k: u64) -> Shape {
        Shape::Matmul([m.min(n), m.max(n), k])
    }

    /// That of an attention.
    pub fn attention(mut dims: [u64; 4], backward: bool) -> Shape {
        dims.sort_unstable();
        Shape::Attention { dims, backward }
    }
}

/// Something that ran on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What kind of work it is.
    pub class: Class,
    /// The operator as PyTorch's profiler calls it, with dots: `aten.mm`.
    pub name: Box<str>,
    /// Of a further kernel of one operator: the first.
    pub head: Option<usize>,
    /// What else it is known by.
    pub shape: Shape,
    /// The stream it ran on, by its place among the side's streams.
    pub stream: u32,
    /// When the stream reached it \[ps\]; an exchange may wait for other ranks from here.
    pub start: Time,
    /// When it ended \[ps\].
    pub end: Time,
    /// How much of it, from its start, was spent waiting for other ranks \[ps\]; none: not known.
    pub waited: Option<Time>,
    /// The rank that came last to an exchange; none: not known.
    pub behind: Option<u32>,
    /// When the host was through with launching it \[ps\]; none: not known.
    pub launched: Option<Time>,
    /// The module that it belongs to; empty if nobody says.
    pub scope: Box<str>,
    /// The pass that it belongs to; none if nobody says.
    pub pass: Option<Pass>,
    /// The ranks that exchange, by whatever the side calls them; empty if nobody says.
    pub group: Box<str>,
    /// The thread of the host that launched it.
    pub thread: u32,
    /// What an exchange or a copy moves \[B\]; 0: not told, or nothing.
    pub bytes: Bytes,
    /// Whether it is of the step at hand: what is left over of another step only takes time.
    pub own: bool,
}

impl Item {
    /// How long it ran \[ps\].
    pub fn time(&self) -> Time {
        self.end - self.start
    }
}

/// What the host was at during some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// The thread.
    pub thread: u32,
    /// When it began \[ps\].
    pub start: Time,
    /// When it ended \[ps\].
    pub end: Time,
    /// What it was: a call that blocks, or an operator.
    pub what: Box<str>,
    /// The annotation or module around it; empty if there is none.
    pub within: Box<str>,
}

impl Doing {
    /// It in words.
    pub fn words(&self) -> String {
        if self.within.is_empty() { self.what.to_string() } else { format!("{} in {}", self.what, self.within) }
    }
}

/// One step of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Where the step begins \[ps\].
    pub begin: Time,
    /// Where it ends \[ps\].
    pub end: Time,
    /// What ran between the two, in the order in which it was launched.
    pub items: Vec<Item>,
    /// What the host's threads did, by thread, then start, without overlap on a thread; empty if nobody says.
    pub host: Vec<Doing>,
}

impl Side {
    /// How long the step is \[ps\].
    pub fn step(&self) -> Time {
        self.end - self.begin
    }
}
