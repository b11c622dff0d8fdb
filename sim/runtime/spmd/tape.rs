//! The compiled step as a list: what runs on which unit, what it reads and writes.
//!
//! Order on a unit is the list's; between units it follows from who reads what. A value lives from the instruction that
//! writes it to the last that reads it: the compiler knows all of that when it gives addresses out.

use crate::program::{Budget, Category, Comm, Pass, ScopeId, StreamId, Work};
use crate::units::Bytes;

/// What runs instructions side by side: the TensorCore, the interconnect, copies to and from the host, and between stages, whose
/// permutes are asynchronous and go along an axis of their own.
pub(super) const UNITS: [&str; 5] = ["tensor core", "interconnect", "to host", "from host", "between stages"];
/// The TensorCore.
pub(super) const CORE: StreamId = StreamId(0);
/// Collectives.
pub(super) const LINKS: StreamId = StreamId(1);
/// Copies to the host.
pub(super) const TO_HOST: StreamId = StreamId(2);
/// Copies from the host.
pub(super) const FROM_HOST: StreamId = StreamId(3);
/// Permutes between stages.
pub(super) const STAGES: StreamId = StreamId(4);

/// A buffer of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(pub(super) u32);

/// Place of an instruction in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At(pub(super) u32);

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// A kernel or a copy.
    Kernel(&'static str, Work),
    /// A collective.
    Exchange(Comm),
    /// The step reached this point: forward, backward or the optimizer is over.
    Phase(&'static str),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) what: What,
    pub(super) unit: StreamId,
    pub(super) pass: Pass,
    pub(super) scope: ScopeId,
    pub(super) reads: Vec<Value>,
    pub(super) writes: Vec<Value>,
    /// Whether it works number by number, so that its first result may take the place of what it reads for the last time.
    pub(super) in_place: bool,
    /// Instructions that must be over before it starts, besides those that wrote what it reads.
    pub(super) after: Vec<At>,
}

/// Size and purpose of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sized {
    pub(super) bytes: Bytes,
    pub(super) category: Category,
    pub(super) name: &'static str,
}

/// The name of what forward keeps in HBM.
pub(super) const KEPT: &str = "kept for backward";

/// The list.
#[derive(Debug)]
pub(super) struct Tape {
    pub(super) steps: Vec<Step>,
    pub(super) values: Vec<Sized>,
    pub(super) pass: Pass,
    pub(super) scope: ScopeId,
    /// What the next kernel of the TensorCore waits for.
    joins: Vec<At>,
    /// The last instruction of the TensorCore.
    last: Option<At>,
    budget: Budget,
}

/// How many instructions of a program take as much of the machine's memory as one of this list.
const EACH: u64 = 16;

impl Tape {
    pub(super) fn new() -> Tape {
        let (pass, scope) = (Pass::Forward, ScopeId::default());
        Tape { steps: vec![], values: vec![], pass, scope, joins: vec![], last: None, budget: Budget::unlimited() }
    }

    /// Stops where the list needs more memory than programs of this budget.
    pub(super) fn within(&mut self, budget: &Budget) {
        self.budget = budget.clone();
    }

    /// A value that some instruction will write.
    pub(super) fn value(&mut self, name: &'static str, bytes: u64, category: Category) -> Value {
        self.values.push(Sized { bytes: Bytes(bytes), category, name });
        Value(self.values.len() as u32 - 1)
    }

    /// The last instruction of the TensorCore.
    pub(super) fn now(&self) -> Vec<At> {
        self.last.into_iter().collect()
    }

    /// A kernel of the TensorCore.
    pub(super) fn kernel(&mut self, name: &'static str, work: Work, reads: &[Value], writes: &[Value]) -> At {
        let after = std::mem::take(&mut self.joins);
        let at = self.push(What::Kernel(name, work), CORE, (reads, writes), after);
        self.last = Some(at);
        at
    }

    /// The same of a kernel that works number by number.
    pub(super) fn elementwise(&mut self, name: &'static str, work: Work, reads: &[Value], writes: &[Value]) -> At {
        let at = self.kernel(name, work, reads, writes);
        self.steps[at.0 as usize].in_place = true;
        at
    }

    /// A copy on one of the other units, that starts when what it reads is there and `after` is over.
    pub(super) fn copy(
        &mut self,
        unit: StreamId,
        work: Work,
        (reads, writes): (&[Value], &[Value]),
        after: Vec<At>,
    ) -> At {
        self.push(What::Kernel("copy", work), unit, (reads, writes), after)
    }

    /// A collective, that starts when what it reads is there and `after` is over.
    pub(super) fn exchange(&mut self, comm: Comm, (reads, writes): (&[Value], &[Value]), after: Vec<At>) -> At {
        self.push(What::Exchange(comm), LINKS, (reads, writes), after)
    }

    /// A permute between stages, that starts when what it reads is there.
    pub(super) fn send(&mut self, comm: Comm, (reads, writes): (&[Value], &[Value])) {
        self.push(What::Exchange(comm), STAGES, (reads, writes), vec![]);
    }

    /// The TensorCore's next kernel waits for an instruction of another unit.
    pub(super) fn join(&mut self, at: At) {
        self.joins.push(at);
    }

    /// A phase is over.
    pub(super) fn phase(&mut self, name: &'static str) {
        self.push(What::Phase(name), CORE, (&[], &[]), vec![]);
    }

    fn push(&mut self, what: What, unit: StreamId, (reads, writes): (&[Value], &[Value]), after: Vec<At>) -> At {
        let (pass, scope) = (self.pass, self.scope);
        self.budget.check(EACH * self.steps.len() as u64);
        let (reads, writes) = (reads.to_vec(), writes.to_vec());
        self.steps.push(Step { what, unit, pass, scope, reads, writes, in_place: false, after });
        At(self.steps.len() as u32 - 1)
    }
}
