//! What a reader has taken from a file so far: lists in the file's order, not yet joined.

use std::collections::BTreeMap;

use super::id::Id;
use super::intern::Interner;
use super::parts::{Call, Collective, Group, Kernel, Name, Op, Thread, Trace};

/// Added to every time while reading, so that times before a file's own zero are positive, too \[ns\].
pub(super) const ZERO: u64 = 1 << 62;

/// A trace that is being read.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// What is known of the whole.
    pub trace: Trace,
    /// Names of everything.
    pub names: Interner,
    /// Arguments of operators as the file has them, once.
    pub signatures: Interner,
    /// Threads by process and thread of the file.
    threads: BTreeMap<(i64, i64), Id<Thread>>,
    /// Process groups by name.
    groups: BTreeMap<String, Id<Group>>,
    /// Operators and ranges.
    pub ops: Vec<DraftOp>,
    /// Calls of modules.
    pub modules: Vec<Module>,
    /// Calls into the driver.
    pub calls: Vec<DraftCall>,
    /// What ran on devices.
    pub kernels: Vec<DraftKernel>,
    /// Steps, where the format itself marks them.
    pub marks: Vec<Mark>,
}

/// An operator with what joins it to others.
#[derive(Debug)]
pub(super) struct DraftOp {
    pub op: Op,
    /// Whether it belongs to a backward pass.
    pub is_backward: bool,
    /// What it says of a collective.
    pub collective: Option<Id<Collective>>,
}

/// A call of a module, such as "Linear_7".
#[derive(Debug)]
pub(super) struct Module {
    pub name: Id<Name>,
    pub thread: Id<Thread>,
    pub start: u64,
    pub end: u64,
}

/// A call with the number that joins it to kernels.
#[derive(Debug)]
pub(super) struct DraftCall {
    pub call: Call,
    pub correlation: Option<u64>,
}

/// A kernel with what joins it to its launch.
#[derive(Debug)]
pub(super) struct DraftKernel {
    pub kernel: Kernel,
    /// The process that launched it, where numbers of calls repeat between processes.
    pub pid: Option<i64>,
    pub correlation: Option<u64>,
}

/// A step that the format marks.
#[derive(Debug)]
pub(super) struct Mark {
    pub name: Id<Name>,
    pub number: Option<u64>,
    pub thread: Option<Id<Thread>>,
    /// The device whose time this is; none for the host's.
    pub device: Option<u32>,
    pub start: u64,
    pub end: u64,
}

impl Draft {
    /// The thread of a process.
    pub(super) fn thread(&mut self, pid: i64, tid: i64) -> Id<Thread> {
        let threads = &mut self.trace.threads;
        *self.threads.entry((pid, tid)).or_insert_with(|| {
            threads.push(Thread { process: 0, pid, tid, name: None });
            Id::new(threads.len() - 1)
        })
    }

    /// The thread of a process, if anything ran there.
    pub(super) fn known_thread(&self, pid: i64, tid: i64) -> Option<Id<Thread>> {
        self.threads.get(&(pid, tid)).copied()
    }

    /// The process group of this name.
    pub(super) fn group(&mut self, name: &str) -> Id<Group> {
        if let Some(&id) = self.groups.get(name) {
            return id;
        }
        self.trace.groups.push(Group { name: name.to_owned(), ..Group::default() });
        let id = Id::new(self.trace.groups.len() - 1);
        self.groups.insert(name.to_owned(), id);
        id
    }

    /// Keeps what is known of a collective.
    pub(super) fn collective(&mut self, collective: Collective) -> Id<Collective> {
        self.trace.collectives.push(collective);
        Id::new(self.trace.collectives.len() - 1)
    }

    /// How many events are kept.
    pub(super) fn kept(&self) -> usize {
        self.ops.len() + self.modules.len() + self.calls.len() + self.kernels.len() + self.marks.len()
    }

    /// Adds a sentence about what is not known.
    pub(super) fn note(&mut self, note: String) {
        self.trace.notes.push(note);
    }
}
