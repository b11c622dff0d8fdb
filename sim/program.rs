//! What a rank's host thread issues in one training step, in host order, as the real framework would issue it.
//!
//! Time and memory both come from this one list, so they cannot disagree: the engine reads launches, collectives and
//! events, the allocator reads allocations and frees. A runtime (`runtime/`) writes the list through [`Builder`].
//! Every kernel and collective is interned, so a cost is asked once per distinct kernel and never per launch.

mod blocking;
mod budget;
mod buffers;
pub mod builder;
mod capture;
mod category;
mod exchange;
mod graphs;
mod group;
mod hash;
mod host;
mod ids;
mod intern;
mod owner;
mod stamp;
pub mod work;

pub use budget::{Budget, TooLong};
pub use buffers::{Buffer, Buffers};
pub use builder::Builder;
pub use category::Category;
pub use exchange::{Direction, Transfer};
pub use graphs::Graphs;
pub use group::Group;
pub use host::{HostMemory, pinned_block};
pub use ids::{BufferId, CommId, EventId, ExchangeId, GroupId, KernelId, RenameId, ScopeId, StreamId, TransferId};
pub use owner::Owner;
pub use stamp::Stamp;
pub use work::{
    AttentionShape, Collective, DType, Dispatch, ExchangeLibrary, Grouping, MatmulLayout, MemoryKind, Pass, Rows, Way,
    Work,
};

use crate::units::{Bytes, Flops};

/// A buffer that goes on under another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The buffer so far.
    pub from: BufferId,
    /// The buffer from here on, of the same size.
    pub to: BufferId,
}

// A job of a thousand micro-batches has tens of millions of them.
const _: () = assert!(size_of::<Instr>() == 8);

/// One thing the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instr {
    /// Enqueue a kernel; the host pays its dispatch cost, the stream runs it when it reaches the front.
    Launch {
        /// The stream it is enqueued on.
        stream: StreamId,
        /// What runs.
        kernel: KernelId,
        /// The module or region it belongs to.
        scope: ScopeId,
    },
    /// Enqueue a collective; it starts when every member of the group has reached it.
    Collective {
        /// The stream it is enqueued on.
        stream: StreamId,
        /// What is exchanged, and with whom.
        comm: CommId,
        /// The module or region it belongs to.
        scope: ScopeId,
    },
    /// Enqueue sends and receives as one operation: each starts when both of its ends have reached theirs, and the
    /// stream goes on when all of them have ended.
    Exchange {
        /// The stream it is enqueued on.
        stream: StreamId,
        /// What is sent and received.
        exchange: ExchangeId,
        /// The module or region it belongs to.
        scope: ScopeId,
    },
    /// Record an event behind everything enqueued on `stream` so far.
    Record {
        /// The stream marked.
        stream: StreamId,
        /// The event.
        event: EventId,
    },
    /// Make later work on `stream` wait for `event`.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The event.
        event: EventId,
    },
    /// Block the host until `event` has happened (`.item()`, `Event.synchronize`).
    HostWait {
        /// The event.
        event: EventId,
    },
    /// Host work that launches nothing (hooks, Python), by its dispatch class.
    Host {
        /// What kind of work, which the profile knows the cost of.
        dispatch: Dispatch,
        /// How many times.
        count: u32,
    },
    /// Memory taken from the caching allocator, in host order.
    Alloc {
        /// The buffer, whose size, pool and name are in [`Program::buffers`].
        buffer: BufferId,
    },
    /// Memory given back to the caching allocator, in host order.
    Free {
        /// The buffer.
        buffer: BufferId,
    },
    /// What was one buffer is known as another from here on: a variable that outlives the step.
    Rename {
        /// Which, and as what.
        rename: RenameId,
    },
    /// Give a buffer another category from here on (a parameter's gradient becomes known as one only when
    /// autograd stores it).
    Recategorize {
        /// The buffer.
        buffer: BufferId,
        /// Its new category.
        category: Category,
    },
    /// The allocator gives cached segments back to the device (`torch.cuda.empty_cache`).
    EmptyCache,
    /// From here to the end of it the host issues one CUDA graph: what lies between is its nodes.
    Graph {
        /// Whether it begins or ends here.
        begins: bool,
    },
    /// A named point in the step, for timelines and phase peaks.
    Mark {
        /// The mark, an index into [`Program::marks`].
        mark: u32,
    },
}

/// A kernel: what it computes, in which pass, and how the host dispatches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel {
    /// Operator name as the framework's profiler shows it, such as `aten.mm`.
    pub name: &'static str,
    /// The arithmetic and the memory traffic.
    pub work: Work,
    /// Which pass of the step it belongs to.
    pub pass: Pass,
    /// What the host pays to launch it.
    pub dispatch: Dispatch,
}

impl Kernel {
    /// FLOPs that count as the step's: an optimizer's do not (Muon multiplies matrices).
    pub fn model_flops(&self) -> Flops {
        if self.pass == Pass::Optimizer { Flops::default() } else { self.work.flops() }
    }

    /// The name of a part of a matmul that other parts of it run beside, each on a stream of its own.
    pub const PART: &str = "te.generic_gemm (part)";

    /// The name of a matmul that leaves 16 processors to kernels that exchange beside it.
    pub const BESIDE: &str = "te.generic_gemm (beside)";

    /// Names of matmuls that leave so many.
    const LEAVING: [(u8, &str); 7] = [
        (16, Kernel::BESIDE),
        (2, "te.generic_gemm (beside 2)"),
        (4, "te.generic_gemm (beside 4)"),
        (8, "te.generic_gemm (beside 8)"),
        (20, "te.generic_gemm (beside 20)"),
        (24, "te.generic_gemm (beside 24)"),
        (32, "te.generic_gemm (beside 32)"),
    ];

    /// How many processors a matmul can leave.
    pub fn leaves() -> impl Iterator<Item = u8> {
        Kernel::LEAVING.into_iter().map(|(processors, _)| processors)
    }

    /// The name of a matmul that leaves so many processors, one of [`Kernel::leaves`].
    pub fn beside(processors: u8) -> &'static str {
        let known = Kernel::LEAVING.iter().find(|(leaves, _)| *leaves == processors);
        known.map_or(Kernel::BESIDE, |(_, name)| name)
    }

    /// How many processors it leaves.
    pub fn aside(&self) -> u8 {
        let known = Kernel::LEAVING.iter().find(|(_, name)| *name == self.name);
        known.map_or(0, |(leaves, _)| *leaves)
    }
}

/// A collective over a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comm {
    /// Which collective.
    pub kind: Collective,
    /// Who takes part.
    pub group: GroupId,
    /// The whole buffer, as nccl-tests counts it (gathered, to be scattered, reduced) \[B\].
    pub bytes: Bytes,
    /// Element type, which decides the reduction kernel.
    pub dtype: DType,
}

/// A named point of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A phase ends here: `fwd`, `bwd`, `clip`, `opt`, `zero`, with the micro-batch's number where there are several.
    PhaseEnd(String),
    /// A hook of a parameter group begins or ends: its name (`pre_forward.pre`) and the group.
    Hook(&'static str, ScopeId),
}

/// Who gives memory out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// PyTorch's caching allocator, while the program runs.
    #[default]
    Caching,
    /// The compiler, before it runs: every buffer has its place for the time it lives.
    Static,
}

/// The host-ordered list for one class of identical ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// What happens once, before the first step: parameters, buffers, inputs.
    pub setup: Vec<Instr>,
    /// The first step, in which the optimizer makes its state: all of it, or what stands in it beside every step's.
    pub first: Vec<Instr>,
    /// Where among the instructions of every step those of `first` stand; none if they are the whole first step.
    pub first_at: Option<usize>,
    /// Every later step.
    pub step: Vec<Instr>,
    /// Where in the step the host begins a round of micro-batches that may repeat the one before: a hint, which the engine
    /// follows where it finds that it does.
    pub rounds: Vec<u32>,
    /// Rounds that every step has beyond those that are written, of which each does what a written one does.
    pub further: u32,
    /// Distinct kernels.
    pub kernels: Vec<Kernel>,
    /// Distinct collectives.
    pub comms: Vec<Comm>,
    /// Distinct ends of messages.
    pub transfers: Vec<Transfer>,
    /// Distinct groups of them.
    pub exchanges: Vec<Vec<TransferId>>,
    /// Communicators.
    pub groups: Vec<Group>,
    /// Stream names; the first is the default stream.
    pub streams: Vec<&'static str>,
    /// The first of the streams whose pools are those of CUDA graphs, if there are any: segments of these, and of all streams after
    /// it, never go back to the device.
    pub graph_pool: Option<StreamId>,
    /// Buffers, by id. An id is allocated at most once between two frees.
    pub buffers: Buffers,
    /// Buffers that go on under other ids.
    pub renames: Vec<Rename>,
    /// Module and region names.
    pub scopes: Vec<String>,
    /// Number of events.
    pub events: u32,
    /// Named points.
    pub marks: Vec<Mark>,
    /// Who gives memory out.
    pub memory: Discipline,
    /// What may be held besides at the peak \[B\], where it is not known at which instruction a compiler makes something again.
    pub unsettled: Bytes,
    /// Whether the device takes what all streams are given from one queue (`CUDA_DEVICE_MAX_CONNECTIONS=1`).
    pub one_queue: bool,
    /// Ranks in the job; one class of them runs this program.
    pub ranks: u32,
    /// FLOPs of one rank's step as PyTorch's FlopCounterMode counts them, without the optimizer's.
    pub flops: Flops,
    /// What the rank takes of its host's memory.
    pub host: HostMemory,
}

impl Program {
    /// Instructions before the first step, in it and in every later one.
    pub fn instructions(&self) -> u64 {
        (self.setup.len() + self.first.len() + self.step.len()) as u64
    }

    /// The first step, in its parts.
    pub fn first_step(&self) -> [&[Instr]; 3] {
        let (before, after) = self.first_at.map_or((&[][..], &[][..]), |at| self.step.split_at(at));
        [before, &self.first, after]
    }

    /// All that happens before the second step.
    pub fn before_second(&self) -> impl Iterator<Item = &Instr> {
        self.setup.iter().chain(self.first_step().into_iter().flatten())
    }

    /// FLOPs of one rank's step in one pass.
    pub fn flops_of(&self, pass: Pass) -> Flops {
        let launched = self.step.iter().filter_map(|instr| match instr {
            Instr::Launch { kernel, .. } => Some(self.kernel(*kernel)),
            _ => None,
        });
        launched.filter(|kernel| kernel.pass == pass).map(|kernel| kernel.work.flops()).sum()
    }

    /// What a compiled step keeps on the host: all that it sends there, until it comes back. XLA takes no more than the arrays' bytes.
    fn sent_to_host(&self) -> HostMemory {
        let bytes = |instr: &Instr| match instr {
            Instr::Launch { kernel, .. } => match self.kernel(*kernel).work {
                Work::HostCopy { bytes, to_host: true } => bytes.0,
                _ => 0,
            },
            _ => 0,
        };
        let all = Bytes(self.step.iter().fold(0_u64, |sum, instr| sum.saturating_add(bytes(instr))));
        HostMemory { held: all, pinned: all, all, files: Bytes(0) }
    }

    /// The name of a scope.
    pub fn scope(&self, scope: ScopeId) -> &str {
        &self.scopes[scope.place()]
    }

    /// The kernel behind an id.
    pub fn kernel(&self, kernel: KernelId) -> &Kernel {
        &self.kernels[kernel.0 as usize]
    }

    /// The collective behind an id.
    pub fn comm(&self, comm: CommId) -> &Comm {
        &self.comms[comm.0 as usize]
    }

    /// The sends and receives behind an id.
    pub fn exchange(&self, exchange: ExchangeId) -> impl ExactSizeIterator<Item = &Transfer> {
        self.exchanges[exchange.0 as usize].iter().map(|transfer| &self.transfers[transfer.0 as usize])
    }

    /// The change of name behind an id.
    pub fn rename(&self, rename: RenameId) -> Rename {
        self.renames[rename.0 as usize]
    }

    /// The group behind an id.
    pub fn group(&self, group: GroupId) -> &Group {
        &self.groups[group.0 as usize]
    }

    /// The buffer behind an id.
    #[inline]
    pub fn buffer(&self, buffer: BufferId) -> &Buffer {
        self.buffers.get(buffer)
    }
}
