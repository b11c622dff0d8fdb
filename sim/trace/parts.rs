//! What a trace is made of, whatever program wrote it: plain lists that point at each other by index.
//!
//! Times are nanoseconds from the trace's first event. Lists are sorted: ops and calls by thread, then start; kernels by start;
//! steps by start. Nothing here is a guess: what the file does not tell is `None`, and `notes` says what that leaves unknown.

use super::id::Id;

/// A trace of one process, or of several that one file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Which program wrote it.
    pub format: Format,
    /// GPUs and versions.
    pub machine: Machine,
    /// The rank of the process in its job.
    pub rank: Option<u32>,
    /// Ranks of the job.
    pub world: Option<u32>,
    /// Nanoseconds since 1970 at time zero, where the file tells.
    pub epoch: Option<i128>,
    /// From time zero to the end of the last event \[ns\].
    pub duration: u64,
    /// Process groups.
    pub groups: Vec<Group>,
    /// Every name, once.
    pub names: Names,
    /// Every list of arguments with their shapes, once.
    pub signatures: Vec<Signature>,
    /// Threads of the host.
    pub threads: Vec<Thread>,
    /// Operators and named ranges of the host, by thread, then start; a parent stands before its children.
    pub ops: Vec<Op>,
    /// Launches and waits of the host, by thread, then start.
    pub calls: Vec<Call>,
    /// What ran on devices, by start.
    pub kernels: Vec<Kernel>,
    /// What is known of collectives.
    pub collectives: Vec<Collective>,
    /// Instructions of compiled programs, which XLA's profiler names in place of operators.
    pub instructions: Vec<Instruction>,
    /// Training steps, by start. A file without marks is one step.
    pub steps: Vec<Step>,
    /// What the reader could not know, or left out, a sentence each.
    pub notes: Vec<String>,
}

/// Which program wrote a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// JSON of PyTorch's profiler.
    #[default]
    Kineto,
    /// The SQLite export of Nsight Systems.
    Nsight,
    /// `xplane.pb` of XLA's profiler.
    Xplane,
    /// The trace viewer's JSON of XLA's profiler.
    XlaViewer,
}

/// GPUs and versions of software.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// GPUs or TPU cores that the file describes, whether or not they ran something.
    pub devices: Vec<Device>,
    /// Names and versions of software, such as ("CUDA runtime", "12.6").
    pub versions: Vec<(String, String)>,
}

/// A GPU or a TPU core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// Its number in the file, as [`Kernel::device`] has it.
    pub number: u32,
    /// Such as "NVIDIA H100 80GB HBM3".
    pub name: Option<String>,
    /// Streaming multiprocessors.
    pub sms: Option<u32>,
    /// Memory \[B\].
    pub memory: Option<u64>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The name that collectives use, such as "0".
    pub name: String,
    /// What it is for, such as "mesh_tp".
    pub purpose: Option<String>,
    /// Its size, where the file tells.
    pub size: Option<u32>,
    /// Its ranks; empty where the file does not list them all.
    pub ranks: Vec<u32>,
}

/// A name: of an operator, a kernel, a type.
#[derive(Clone, Copy, Debug)]
pub enum Name {}

/// Every name of a trace, once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    pub(super) text: String,
    pub(super) ends: Vec<usize>,
}

impl Names {
    /// The name with this id.
    pub fn get(&self, id: Id<Name>) -> &str {
        let start = id.at().checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(id.at()).copied().unwrap_or(start);
        self.text.get(start..end).unwrap_or_default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The arguments of an operator, as recorded with shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// One for each argument.
    pub args: Vec<Arg>,
}

/// An argument of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arg {
    /// Its type as the file has it: "c10::BFloat16", "Scalar", "TensorList".
    pub kind: Option<Id<Name>>,
    /// The tensor, or those of a list; empty for scalars and for arguments that were not given.
    pub tensors: Vec<Tensor>,
    /// Whether it is a list of tensors.
    pub is_list: bool,
    /// The value of a scalar or a list of numbers, as text.
    pub value: Option<Id<Name>>,
}

/// A tensor's shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tensor {
    /// Its sizes.
    pub dims: Vec<u64>,
    /// Elements from one to the next along each dimension; empty where the file does not tell.
    pub strides: Vec<i64>,
}

/// A thread of the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thread {
    /// Its process, numbered from zero in the order of their ids.
    pub process: u32,
    /// The process's id in the file.
    pub pid: i64,
    /// The thread's id in the file.
    pub tid: i64,
    /// Such as "pt_autograd_0".
    pub name: Option<String>,
}

/// What an [`Op`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// An operator of the framework.
    #[default]
    Operator,
    /// A range that somebody named: `record_function`, NVTX, a step.
    Range,
}

/// An operator or a named range of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Such as "aten::mm".
    pub name: Id<Name>,
    /// Where it ran.
    pub thread: Id<Thread>,
    /// When it began \[ns\].
    pub start: u64,
    /// How long it took \[ns\].
    pub duration: u64,
    /// The innermost op or range of the same thread around it.
    pub parent: Option<Id<Op>>,
    /// An operator or a range.
    pub scope: Scope,
    /// Its arguments, where shapes were recorded.
    pub signature: Option<Id<Signature>>,
    /// Autograd's number, which a forward operator shares with its backward.
    pub sequence: Option<u32>,
    /// Of a backward operator: the forward operator it belongs to.
    pub forward: Option<Id<Op>>,
    /// The path of the module around it, such as "Model_0/Block_3/Linear_7"; for a backward operator, that of its forward.
    pub module: Option<Id<Name>>,
}

/// What a [`Call`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// Launches a kernel, a copy or a set.
    #[default]
    Launch,
    /// Launches a graph of kernels.
    Graph,
    /// Waits for the device: `cudaStreamSynchronize`, `cudaEventSynchronize`, `cudaDeviceSynchronize`.
    Wait,
}

/// A call of the host into the driver: a launch or a wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Such as "cudaLaunchKernel".
    pub name: Id<Name>,
    /// What it does.
    pub kind: CallKind,
    /// Where.
    pub thread: Id<Thread>,
    /// When it began \[ns\].
    pub start: u64,
    /// How long it took \[ns\].
    pub duration: u64,
}

/// What a [`Kernel`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A kernel that computes.
    #[default]
    Compute,
    /// A kernel that communicates.
    Collective,
    /// A copy between memories.
    Copy,
    /// A memory set to a value.
    Set,
}

/// Something that ran on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The kernel's name; of copies "Memcpy HtoD (Pinned -> Device)".
    pub name: Id<Name>,
    /// What it is.
    pub kind: Kind,
    /// Whether a graph launched it: its operator then replays the graph, and tells no shapes.
    pub in_graph: bool,
    /// The device's number in the file.
    pub device: u32,
    /// The stream's number on its device.
    pub stream: u32,
    /// When it began \[ns\].
    pub start: u64,
    /// How long it ran \[ns\].
    pub duration: u64,
    /// Blocks, where told; else zeros.
    pub grid: [u32; 3],
    /// Threads of a block, where told; else zeros.
    pub block: [u32; 3],
    /// Bytes of a copy or a set, where told.
    pub bytes: Option<u64>,
    /// The call that launched it; none where it was launched before recording began.
    pub launch: Option<Id<Call>>,
    /// The innermost operator around the launch.
    pub op: Option<Id<Op>>,
    /// The innermost range around the launch.
    pub range: Option<Id<Op>>,
    /// The step in which it was launched.
    pub step: Option<Id<Step>>,
    /// Of kernels that communicate.
    pub collective: Option<Id<Collective>>,
    /// Of kernels that XLA launched.
    pub instruction: Option<Id<Instruction>>,
}

/// An instruction of a program that XLA compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Such as "fusion.12".
    pub name: Id<Name>,
    /// The program, such as "jit_train_step".
    pub program: Option<Id<Name>>,
    /// Where the source made it, such as "jit(loss)/jvp(Model)/mlp/dot_general"; `transpose(…)` in it is backward.
    pub path: Option<Id<Name>>,
    /// XLA's own class of it, such as "convolution fusion".
    pub category: Option<Id<Name>>,
    /// FLOPs by XLA's count.
    pub flops: Option<u64>,
    /// Bytes that it reads and writes, by XLA's count \[B\].
    pub bytes: Option<u64>,
    /// Shapes of what it writes, where the file has the instruction's text.
    pub results: Option<Id<Signature>>,
    /// Shapes of what it reads, where the file has the instruction's text.
    pub operands: Option<Id<Signature>>,
}

/// What a collective does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// All-reduce.
    AllReduce,
    /// All-gather.
    AllGather,
    /// Reduce-scatter.
    ReduceScatter,
    /// All-to-all.
    AllToAll,
    /// Broadcast.
    Broadcast,
    /// Reduce to one rank.
    Reduce,
    /// Point to point; NCCL runs all-to-all as this, too.
    SendRecv,
    /// Any other, and those whose name does not tell.
    #[default]
    Other,
}

/// What is known of a collective.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// What this rank puts in \[B\].
    pub bytes_in: Option<u64>,
    /// What this rank gets out \[B\].
    pub bytes_out: Option<u64>,
    /// Its type as the file has it, such as "BFloat16".
    pub dtype: Option<Id<Name>>,
    /// The process group.
    pub group: Option<Id<Group>>,
    /// Ranks that take part.
    pub group_size: Option<u32>,
    /// Its number within the group, where told.
    pub sequence: Option<u64>,
}

/// A training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What the mark says: "ProfilerStep#12"; none where the whole trace is one step.
    pub name: Option<Id<Name>>,
    /// The number in the mark.
    pub number: Option<u64>,
    /// The thread that marked it; its process launched the step's kernels. None: every process.
    pub thread: Option<Id<Thread>>,
    /// When it began on the host \[ns\].
    pub start: u64,
    /// How long the host took \[ns\].
    pub duration: u64,
    /// What it was on each device that ran some of it.
    pub windows: Vec<Window>,
}

/// A step as a device saw it, which runs behind the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The device's number in the file.
    pub device: u32,
    /// The start of the first kernel launched in the step \[ns\].
    pub start: u64,
    /// The start of the next step's first kernel; of the last step, the end of its last kernel \[ns\].
    pub end: u64,
    /// Whether the end is the next step's start.
    pub is_whole: bool,
}

impl Trace {
    /// A name's text.
    pub fn name(&self, id: Id<Name>) -> &str {
        self.names.get(id)
    }

    /// An op and what is around it, innermost first.
    pub fn around(&self, id: Option<Id<Op>>) -> impl Iterator<Item = &Op> {
        std::iter::successors(id.map(|id| &self.ops[id.at()]), |op| op.parent.map(|id| &self.ops[id.at()]))
    }
}

impl Kernel {
    /// When it ended \[ns\].
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}

impl Op {
    /// When it ended \[ns\].
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}

impl Call {
    /// When it ended \[ns\].
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}

impl Step {
    /// When the host's part of it ended \[ns\].
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}
