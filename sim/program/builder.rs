//! Writes a [`Program`]: interns kernels and collectives, hands out buffers and events, recycles their ids.

use super::budget::{Budget, Share};
use super::host::HostAccount;
use super::intern::Interned;
use super::{
    Buffer, BufferId, Category, Comm, CommId, Dispatch, EventId, ExchangeId, Graphs, Group, GroupId, Instr, Kernel,
    KernelId, Mark, Owner, Pass, Program, Rename, RenameId, ScopeId, StreamId, Transfer, TransferId, Work,
};
use crate::units::{Bytes, Flops};

/// Which list instructions go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Before the first step.
    Setup,
    /// The first step.
    First,
    /// Every later step.
    Step,
}

/// Builds a program in host order.
#[derive(Debug)]
pub struct Builder {
    pub(super) program: Program,
    pub(super) section: Section,
    kernels: Interned<Kernel>,
    comms: Interned<Comm>,
    transfers: Interned<Transfer>,
    exchanges: Interned<Vec<TransferId>>,
    /// Kinds of buffers.
    buffers: Interned<Buffer>,
    scope: ScopeId,
    pass: Pass,
    /// What all memory counts as, whatever it is taken for.
    counts_as: Option<Category>,
    pub(super) graphs: Graphs,
    /// A stream beside the default one that is the model's own.
    beside: Option<StreamId>,
    /// A stream whose pool serves what is taken for the default one, while a graph's first run warms up.
    warm_up: Option<StreamId>,
    host: HostAccount,
    /// How long the program may be.
    pub(super) share: Share,
}

impl Builder {
    /// An empty program for `ranks` ranks with the given streams; the first is the default stream.
    pub fn new(ranks: u32, streams: &[&'static str]) -> Self {
        Builder::within(&Budget::unlimited(), ranks, streams)
    }

    /// The same for a program that takes its instructions from a budget.
    pub fn within(budget: &Budget, ranks: u32, streams: &[&'static str]) -> Self {
        let program =
            Program { streams: streams.to_vec(), scopes: vec!["<root>".to_owned()], ranks, ..Program::default() };
        Builder {
            program,
            section: Section::Setup,
            kernels: Interned::default(),
            comms: Interned::default(),
            transfers: Interned::default(),
            exchanges: Interned::default(),
            buffers: Interned::default(),
            scope: ScopeId::default(),
            pass: Pass::Forward,
            counts_as: None,
            graphs: Graphs::Apart,
            beside: None,
            warm_up: None,
            host: HostAccount::default(),
            share: Share::of(budget),
        }
    }

    /// Makes room for some more instructions of a step, as far as the budget goes.
    pub fn reserve(&mut self, instructions: usize) {
        let room = usize::try_from(self.share.room()).unwrap_or(usize::MAX);
        self.program.step.reserve_exact(instructions.min(room));
    }

    /// How many instructions a step has so far.
    pub fn written(&self) -> usize {
        self.program.step.len()
    }

    /// Who gives memory out.
    pub fn memory(&mut self, discipline: super::Discipline) {
        self.program.memory = discipline;
    }

    /// Chooses the list that later instructions go to.
    pub fn section(&mut self, section: Section) {
        self.section = section;
    }

    /// What is there before the first step, found out on the way: written to the setup, wherever a step stands.
    pub fn before_steps<T>(&mut self, write: impl FnOnce(&mut Builder) -> T) -> T {
        let section = std::mem::replace(&mut self.section, Section::Setup);
        let written = write(self);
        self.section = section;
        written
    }

    /// What only the first step does, at this place of a step: for a first step that is otherwise like every other and
    /// is not written out on its own.
    pub fn first_only(&mut self, write: impl FnOnce(&mut Builder)) {
        self.program.first_at = Some(self.program.step.len());
        let section = std::mem::replace(&mut self.section, Section::First);
        write(self);
        self.section = section;
    }

    /// A round of micro-batches begins here that may repeat the one before.
    pub fn begin_round(&mut self) {
        self.program.rounds.push(self.program.step.len() as u32);
    }

    /// Names a scope; the id stays valid for the whole program. A few for each layer are told apart: of thousands of empty stages on a rank,
    /// those beyond [`ScopeId::MOST`] share the last one's name.
    pub fn add_scope(&mut self, name: String) -> ScopeId {
        let place = self.program.scopes.len();
        let Some(scope) = ScopeId::at(place) else { return ScopeId::LAST };
        self.program.scopes.push(name);
        scope
    }

    /// Sets the scope of later instructions and returns the one before.
    pub fn enter(&mut self, scope: ScopeId) -> ScopeId {
        std::mem::replace(&mut self.scope, scope)
    }

    /// The scope of later instructions.
    pub fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Says which part of the model is at work in the scope from here on, and returns the scope with the one before.
    pub fn at_work(&mut self, owner: Owner) -> ScopeId {
        self.enter(self.scope.of(owner))
    }

    /// Sets the pass of later kernels and returns the one before.
    pub fn set_pass(&mut self, pass: Pass) -> Pass {
        std::mem::replace(&mut self.pass, pass)
    }

    /// The pass of later kernels.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// Adds a communicator.
    pub fn add_group(&mut self, group: Group) -> GroupId {
        self.program.groups.push(group);
        GroupId(u16::try_from(self.program.groups.len() - 1).expect("at most 65,535 groups"))
    }

    /// Ranks of a communicator.
    pub fn ranks_of(&self, group: GroupId) -> u32 {
        self.program.group(group).size
    }

    /// Appends one instruction to the current section. Of what is captured memory alone is left.
    pub fn push(&mut self, instr: Instr) {
        let memory = matches!(instr, Instr::Alloc { .. } | Instr::Free { .. } | Instr::Recategorize { .. });
        if self.graphs == Graphs::Captured && !memory {
            return;
        }
        self.share.count(1);
        match self.section {
            Section::Setup => self.program.setup.push(instr),
            Section::First => self.program.first.push(instr),
            Section::Step => self.program.step.push(instr),
        }
    }

    /// A stream beside the default one runs the model's own operators.
    pub fn computes_beside(&mut self, stream: StreamId) {
        self.beside = Some(stream);
    }

    /// Launches a kernel in the current scope and pass.
    pub fn launch(&mut self, stream: StreamId, name: &'static str, work: Work, dispatch: Dispatch) {
        // What runs beside the default stream serves a collective: casts, packing, copies to the host. But for matmuls, whose
        // parts may be on streams of their own.
        let own = stream.0 == 0 || self.beside == Some(stream) || matches!(work, Work::Matmul { .. });
        let pass = if own { self.pass } else { Pass::Communication };
        let kernel = Kernel { name, work: work.of(name), pass, dispatch };
        let kernel = KernelId(self.kernels.id(&mut self.program.kernels, kernel));
        let scope = if pass == Pass::Optimizer { self.scope.of(Owner::Optimizer) } else { self.scope };
        self.push(Instr::Launch { stream, kernel, scope });
    }

    /// Issues a collective in the current scope.
    pub fn collective(&mut self, stream: StreamId, comm: Comm) {
        let comm = CommId(self.comms.id(&mut self.program.comms, comm));
        self.push(Instr::Collective { stream, comm, scope: self.scope });
    }

    /// Issues sends and receives as one operation in the current scope; none if there are none.
    pub fn exchange(&mut self, stream: StreamId, transfers: &[Transfer]) {
        if transfers.is_empty() {
            return;
        }
        let known = &mut self.program.transfers;
        let ends = transfers.iter().map(|&transfer| TransferId(self.transfers.id(known, transfer))).collect();
        let exchange = ExchangeId(self.exchanges.id(&mut self.program.exchanges, ends));
        self.push(Instr::Exchange { stream, exchange, scope: self.scope });
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.program.streams.len()
    }

    /// Records a new event on `stream`.
    pub fn record(&mut self, stream: StreamId) -> EventId {
        let event = EventId(self.program.events);
        self.program.events += 1;
        self.push(Instr::Record { stream, event });
        event
    }

    /// Makes `stream` wait for `event`.
    pub fn wait(&mut self, stream: StreamId, event: EventId) {
        self.push(Instr::Wait { stream, event });
    }

    /// Makes `stream` wait for everything on `other` so far (`Stream.wait_stream`).
    pub fn wait_stream(&mut self, stream: StreamId, other: StreamId) {
        let event = self.record(other);
        self.wait(stream, event);
    }

    /// Blocks the host until everything on `stream` so far has happened.
    pub fn wait_for_host(&mut self, stream: StreamId) {
        let event = self.record(stream);
        self.push(Instr::HostWait { event });
    }

    /// Host work without a launch.
    pub fn host(&mut self, dispatch: Dispatch, count: u32) {
        if count > 0 {
            self.push(Instr::Host { dispatch, count });
        }
    }

    /// Takes memory. Zero bytes take nothing in PyTorch, and do here: the id is valid all the same.
    pub fn alloc(&mut self, bytes: Bytes, stream: StreamId, category: Category, name: &'static str) -> BufferId {
        let (bytes, stream) = match self.graphs {
            Graphs::Apart => (bytes, self.warm_up.filter(|_| stream.0 == 0).unwrap_or(stream)),
            Graphs::Replayed => (Bytes(0), stream),
            Graphs::Captured | Graphs::Both => (bytes, self.program.pool_of(stream)),
        };
        let buffer = self.later(bytes, stream, category, name);
        self.push(Instr::Alloc { buffer });
        buffer
    }

    /// From here on another stream's pool serves what is taken for the default stream; none: its own again.
    pub fn warm_up(&mut self, stream: Option<StreamId>) {
        self.warm_up = stream;
    }

    /// A buffer that takes no memory of its own: what another hands over ([`Instr::Rename`]).
    pub fn later(&mut self, bytes: Bytes, stream: StreamId, category: Category, name: &'static str) -> BufferId {
        let category = self.counts_as.unwrap_or(category);
        let buffer = Buffer { bytes, stream, category, name, scope: self.scope };
        self.program.buffers.add(buffer, &mut self.buffers)
    }

    /// From here on all memory counts as of this category; none: as of the one that it is taken for.
    pub fn count_as(&mut self, category: Option<Category>) {
        self.counts_as = category;
    }

    /// Takes pinned memory of the host \[B\].
    pub fn pin(&mut self, bytes: u64) {
        self.host.pin(bytes);
    }

    /// Returns pinned memory to the host's allocator, which keeps it.
    pub fn unpin(&mut self, bytes: u64) {
        self.host.unpin(bytes);
    }

    /// Takes memory of the host that is not pinned, and keeps it \[B\].
    pub fn keep_on_host(&mut self, bytes: u64) {
        self.host.keep(bytes);
    }

    /// Gives memory back.
    pub fn free(&mut self, buffer: BufferId) {
        self.push(Instr::Free { buffer });
    }

    /// A block that one operator takes and gives back (a workspace).
    pub fn transient(&mut self, bytes: Bytes, stream: StreamId, category: Category, name: &'static str) {
        let buffer = self.alloc(bytes, stream, category, name);
        self.free(buffer);
    }

    /// Changes a buffer's category from here on.
    pub fn recategorize(&mut self, buffer: BufferId, category: Category) {
        self.push(Instr::Recategorize { buffer, category });
    }

    /// A buffer is known as another from here on.
    pub fn rename(&mut self, from: BufferId, to: BufferId) {
        let rename = RenameId(self.program.renames.len() as u32);
        self.program.renames.push(Rename { from, to });
        self.push(Instr::Rename { rename });
    }

    /// Marks a point.
    pub fn mark(&mut self, mark: Mark) {
        let index = self.program.marks.len() as u32;
        self.program.marks.push(mark);
        self.push(Instr::Mark { mark: index });
    }

    /// The finished program. FLOPs are those of the steady step.
    pub fn finish(mut self) -> Program {
        let mut launched = vec![0; self.program.kernels.len()];
        for instr in &self.program.step {
            if let Instr::Launch { kernel, .. } = instr {
                launched[kernel.0 as usize] += 1;
            }
        }
        let each = |(kernel, times): (&Kernel, u128)| Flops(kernel.model_flops().0 * times);
        self.program.host = match self.program.memory {
            super::Discipline::Static => self.program.sent_to_host(),
            super::Discipline::Caching => self.host.most(),
        };
        self.program.flops = self.program.kernels.iter().zip(launched).map(each).sum();
        // A list that grew has room for as many again.
        self.program.step.shrink_to_fit();
        self.program
    }
}
