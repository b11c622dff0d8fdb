//! A program's step laid out for the event loop: what the host does, and what each stream then finds, by index.
//!
//! The host issues in order, so which record a wait refers to is known beforehand: the last one of that event earlier in
//! the step. Each record gets a *slot* for the streams that wait for it, and one for the host, which sees it sooner. A wait
//! with no earlier record in the step waits for nothing, as in CUDA, and a wait for one's own stream is always satisfied;
//! both cost the host and then vanish. Records nobody waits for vanish too.

use std::collections::BTreeMap;

use crate::program::{
    Direction, Dispatch, EventId, ExchangeId, Instr, Kernel, Mark, Pass, Program, ScopeId, StreamId, TransferId, Work,
};

use super::Costs;
use super::order::{Order, Pair};
use super::pace::Pace;
use super::ranks::Bound;
use crate::units::Time;

/// What a stream finds when it gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamOp {
    /// Run a kernel.
    Kernel { kernel: u32, scope: ScopeId },
    /// Take part in a collective.
    Comm { comm: u32, scope: ScopeId },
    /// Post sends and receives and go on when all have ended.
    Exchange { issue: u32, scope: ScopeId },
    /// An event happens; others see it at once, or after the latency of events.
    Record { slot: u32, late: bool },
    /// Go on when an event has happened.
    Wait { slot: u32, scope: ScopeId },
    /// Note the time.
    Mark { mark: u32 },
    /// The step is over.
    StepEnd,
}

/// What the host does after paying `cost`.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostOp {
    /// Host time since the last action \[ps\].
    pub(super) cost: u64,
    /// The action.
    pub(super) action: Action,
}

/// What the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Hand the stream its next operation; a kernel or collective takes a place in its queue.
    Issue { stream: u8, queued: bool },
    /// Block until an event has happened.
    Wait { slot: u32 },
    /// Note the time.
    Mark { mark: u32 },
    /// The step is over.
    StepEnd,
}

/// A record that someone waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// None: it says that an operation of the device's only queue has begun.
    pub(super) event: Option<EventId>,
    pub(super) stream: u8,
    /// Its place among the operations.
    pub(super) at: u32,
    pub(super) scope: ScopeId,
}

/// An exchange as it is issued at one place of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issue {
    pub(super) exchange: u32,
    /// Its sends and receives, in `legs`.
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A send or receive of an issue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    pub(super) transfer: u32,
    pub(super) direction: Direction,
    /// Which message it is of those that its step sends to (or receives from) the peer, and how many those are.
    pub(super) turn: u32,
    pub(super) every: u32,
}

/// All processors of a rank.
pub(super) const WHOLE: u32 = 1 << 12;

/// A kernel as the loop needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelPlan {
    pub(super) work: u64,
    /// Its pace beside a collective.
    pub(super) slowed: Pace,
    /// Whether it counts as compute.
    pub(super) compute: bool,
    /// How much of the processors it takes, of [`WHOLE`].
    pub(super) share: u32,
    /// What holds it back, which decides on its pace on a rank.
    pub(super) bound: Bound,
}

/// One class of ranks, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) host: Vec<HostOp>,
    /// Scope of each host action, for messages.
    pub(super) host_scope: Vec<ScopeId>,
    /// Operations, stream after stream.
    pub(super) ops: Vec<StreamOp>,
    /// Start of each stream in `ops`.
    pub(super) first: Vec<u32>,
    pub(super) kernels: Vec<KernelPlan>,
    pub(super) slots: Vec<Slot>,
    /// Where rounds may begin, among the operations of the default stream, and among the host's actions.
    pub(super) rounds: Vec<u32>,
    pub(super) host_rounds: Vec<u32>,
    pub(super) issues: Vec<Issue>,
    pub(super) legs: Vec<Leg>,
    /// When each instruction of the step takes effect; empty unless recorded.
    pub(super) effects: Vec<Effect>,
}

/// When an instruction takes effect: so long after the host went past an action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    /// Host actions up to and including that one; 0: the host's beginning of the step.
    pub(super) actions: u32,
    /// Host time paid since \[ps\].
    pub(super) paid: u64,
}

/// What holds a kernel back.
fn bound(work: &Work) -> Bound {
    match work {
        Work::Matmul { .. } | Work::GroupedMatmul { .. } | Work::Attention { .. } => Bound::Compute,
        Work::Memory { .. } => Bound::Memory,
        Work::HostCopy { .. } | Work::HostMemory { .. } | Work::Disk { .. } => Bound::Host,
    }
}

/// Marks an event with no record yet.
const NONE: u32 = u32::MAX;

impl Plan {
    /// Lays out `program` for `streams` streams; if `record`, with the effect of each instruction.
    pub(super) fn new(program: &Program, costs: &Costs, streams: usize, record: bool) -> Plan {
        let Census { awaited, ops, actions, pairs } = Census::of(program, streams);
        // Streams lie one behind the other, each with the end of its step.
        let mut first = vec![];
        let mut end = 0;
        for ops in ops {
            first.push(end);
            end += ops + 1;
        }
        let mut layout = Layout {
            plan: Plan {
                host: Vec::with_capacity(actions),
                host_scope: Vec::with_capacity(actions),
                ops: vec![StreamOp::StepEnd; end as usize],
                first: first.clone(),
                kernels: Vec::new(),
                slots: Vec::new(),
                rounds: Vec::new(),
                host_rounds: Vec::new(),
                issues: Vec::new(),
                legs: Vec::new(),
                effects: Vec::new(),
            },
            next: first,
            paid: 0,
            scope: ScopeId::default(),
            in_graph: false,
            begun: Vec::with_capacity(pairs.len()),
            turns: 0,
            turn_at: next_turn(&pairs, 0, 0),
            pairs,
        };
        let mut latest = vec![Latest::NONE; program.events as usize];
        let mut rounds = program.rounds.iter().peekable();
        for (index, (instr, &awaited)) in program.step.iter().zip(&awaited).enumerate() {
            if rounds.next_if(|&&round| round as usize <= index).is_some() {
                layout.plan.rounds.push(layout.next[0]);
                layout.plan.host_rounds.push(layout.plan.host.len() as u32);
            }
            let turn = layout.turn_at == index as u32;
            if turn {
                layout.take_turn(index as u32, matches!(instr, Instr::Wait { .. }));
            }
            layout.add(program, costs, instr, awaited, &mut latest);
            if turn {
                layout.end_turn(index as u32);
            }
            if record {
                let (actions, paid) = (layout.plan.host.len() as u32, layout.paid);
                layout.plan.effects.push(Effect { actions, paid });
            }
        }
        layout.act(Action::StepEnd);
        let mut plan = layout.plan;
        plan.number_messages(program);
        plan.kernels = program
            .kernels
            .iter()
            .zip(&costs.kernel)
            .map(|(kernel, cost)| KernelPlan {
                work: cost.time.0,
                slowed: Pace::from_factor(cost.slowdown),
                compute: kernel.pass != Pass::Communication,
                share: (cost.share * f64::from(WHOLE)).round() as u32,
                bound: bound(&kernel.work),
            })
            .collect();
        plan
    }

    /// Numbers the messages to and from each peer in the order of being issued.
    fn number_messages(&mut self, program: &Program) {
        let key = |leg: &Leg| {
            let transfer = &program.transfers[leg.transfer as usize];
            (transfer.group, transfer.ahead, transfer.direction)
        };
        let mut counts = BTreeMap::new();
        for leg in &mut self.legs {
            let count = counts.entry(key(leg)).or_insert(0);
            leg.turn = *count;
            *count += 1;
        }
        for leg in &mut self.legs {
            leg.every = counts[&key(leg)];
        }
    }
}

/// Who waits for a record: other streams, the host.
#[derive(Clone, Copy, Default)]
struct Awaited {
    streams: bool,
    host: bool,
}

/// The slots of an event's latest record, for streams and for the host.
#[derive(Clone, Copy)]
struct Latest {
    streams: u32,
    host: u32,
}

impl Latest {
    const NONE: Latest = Latest { streams: NONE, host: NONE };
}

/// What a step comes to, before it is laid out.
struct Census {
    /// For each instruction that is a record, whose later waits refer to it.
    awaited: Vec<Awaited>,
    /// Operations of each stream, but for the end of the step.
    ops: Vec<u32>,
    /// Actions of the host.
    actions: usize,
    /// What waits for its turn in the device's only queue.
    pairs: Vec<Pair>,
}

impl Census {
    fn of(program: &Program, streams: usize) -> Census {
        let mut awaited = vec![Awaited::default(); program.step.len()];
        let (mut ops, mut waits) = (vec![0; streams], 0);
        // Index and stream of the latest record of each event.
        let mut latest = vec![(NONE, StreamId(0)); program.events as usize];
        let mut order = program.one_queue.then(|| Order::new(streams));
        // Copies to and from the host have queues of their own, and what the host does itself has none.
        let copies = |kernel: &Kernel| {
            matches!(kernel.work, Work::HostCopy { .. } | Work::HostMemory { .. } | Work::Disk { .. })
        };
        let copies: Vec<bool> = program.kernels.iter().map(copies).collect();
        // Operations of the stream before the latest record of each event.
        let mut before = vec![0; if order.is_some() { latest.len() } else { 0 }];
        for (index, instr) in program.step.iter().enumerate() {
            match *instr {
                Instr::Launch { stream, .. } | Instr::Collective { stream, .. } | Instr::Exchange { stream, .. } => {
                    ops[stream.0 as usize] += 1;
                    let copies = matches!(*instr, Instr::Launch { kernel, .. } if copies[kernel.0 as usize]);
                    if let Some(order) = order.as_mut().filter(|_| !copies) {
                        order.issue(index, stream);
                    }
                }
                Instr::Record { stream, event } => {
                    latest[event.0 as usize] = (index as u32, stream);
                    if let Some(order) = &order {
                        before[event.0 as usize] = order.count(stream);
                    }
                }
                Instr::Wait { event, .. } | Instr::HostWait { event } => {
                    let (record, on) = latest[event.0 as usize];
                    let waited_for = match *instr {
                        _ if record == NONE => continue,
                        Instr::Wait { stream, .. } if stream == on => continue,
                        Instr::Wait { stream, event } => {
                            ops[stream.0 as usize] += 1;
                            if let Some(order) = &mut order {
                                order.waits(stream, on, before[event.0 as usize]);
                                order.issue(index, stream);
                            }
                            &mut awaited[record as usize].streams
                        }
                        _ => {
                            waits += 1;
                            &mut awaited[record as usize].host
                        }
                    };
                    if !std::mem::replace(waited_for, true) {
                        ops[on.0 as usize] += 1;
                    }
                }
                Instr::Mark { mark } => {
                    waits += 1;
                    ops[0] += u32::from(matches!(program.marks[mark as usize], Mark::PhaseEnd(_)));
                }
                _ => {}
            }
        }
        let pairs = order.map(Order::pairs).unwrap_or_default();
        for (_, stream) in pairs.iter().flat_map(|pair| [pair.first, pair.second]) {
            ops[stream.0 as usize] += 1;
        }
        // The host issues all of these, waits and passes marks, and ends the step.
        let actions = ops.iter().sum::<u32>() as usize + waits + 1;
        Census { awaited, ops, actions, pairs }
    }
}

/// A plan being laid out.
struct Layout {
    plan: Plan,
    /// By stream: where its next operation lies.
    next: Vec<u32>,
    /// Host time since the last action \[ps\].
    paid: u64,
    scope: ScopeId,
    /// Whether a CUDA graph is being issued.
    in_graph: bool,
    /// The slots of those first operations of the queue's pairs that have been laid out.
    begun: Vec<u32>,
    /// Pairs whose second operation has been.
    turns: usize,
    /// The next instruction that is of a pair.
    turn_at: u32,
    /// What waits for its turn in the device's only queue.
    pairs: Vec<Pair>,
}

/// The next instruction that is of a pair, behind so many first and second ones.
fn next_turn(pairs: &[Pair], first: usize, second: usize) -> u32 {
    let first = pairs.get(first).map_or(NONE, |pair| pair.first.0);
    pairs.get(second).map_or(first, |pair| pair.second.0.min(first))
}

impl Layout {
    /// An operation of a pair comes: it waits until the one before it in the device's queue has begun, and begins. A wait has
    /// begun when it is over.
    fn take_turn(&mut self, index: u32, waits: bool) {
        if let Some(pair) = self.pairs.get(self.turns).filter(|pair| pair.second.0 == index) {
            let slot = self.begun[self.turns];
            self.turns += 1;
            self.issue(pair.second.1.0, StreamOp::Wait { slot, scope: self.scope });
        }
        if !waits {
            self.begin(index);
        }
    }

    /// A wait of a pair is over, and the next operation to look at is found.
    fn end_turn(&mut self, index: u32) {
        self.begin(index);
        self.turn_at = next_turn(&self.pairs, self.begun.len(), self.turns);
    }

    /// Says that an operation that another waits for begins, once.
    fn begin(&mut self, index: u32) {
        let Some(pair) = self.pairs.get(self.begun.len()).filter(|pair| pair.first.0 == index) else { return };
        let (slot, stream) = (self.plan.slots.len() as u32, pair.first.1.0);
        let at = self.next[stream as usize];
        self.plan.slots.push(Slot { event: None, stream, at, scope: self.scope });
        self.begun.push(slot);
        self.issue(stream, StreamOp::Record { slot, late: false });
    }

    fn act(&mut self, action: Action) {
        self.plan.host.push(HostOp { cost: std::mem::take(&mut self.paid), action });
        self.plan.host_scope.push(self.scope);
    }

    fn issue(&mut self, stream: u8, op: StreamOp) {
        let queued = matches!(op, StreamOp::Kernel { .. } | StreamOp::Comm { .. } | StreamOp::Exchange { .. });
        let next = &mut self.next[stream as usize];
        self.plan.ops[*next as usize] = op;
        *next += 1;
        self.act(Action::Issue { stream, queued });
    }

    /// Lays out an exchange; `number_messages` says which messages its are.
    fn exchange(&mut self, program: &Program, ExchangeId(exchange): ExchangeId) -> u32 {
        let transfers = &program.exchanges[exchange as usize];
        let first = self.plan.legs.len() as u32;
        let leg = |&TransferId(transfer): &TransferId| {
            let direction = program.transfers[transfer as usize].direction;
            Leg { transfer, direction, turn: 0, every: 0 }
        };
        self.plan.legs.extend(transfers.iter().map(leg));
        self.plan.issues.push(Issue { exchange, first, count: transfers.len() as u32 });
        self.plan.issues.len() as u32 - 1
    }

    /// The host pays. What a graph holds it does not dispatch.
    fn pay(&mut self, cost: Time, count: u64) {
        if !self.in_graph {
            self.paid += cost.0 * count;
        }
    }

    fn add(&mut self, program: &Program, costs: &Costs, instr: &Instr, awaited: Awaited, latest: &mut [Latest]) {
        match *instr {
            Instr::Launch { stream, kernel, scope } => {
                self.pay(costs.dispatch[program.kernel(kernel).dispatch as usize], 1);
                self.scope = scope;
                self.issue(stream.0, StreamOp::Kernel { kernel: kernel.0, scope });
            }
            Instr::Collective { stream, comm, scope } => {
                let group = program.group(program.comm(comm).group);
                self.pay(costs.dispatch[group.dispatch() as usize], 1);
                self.scope = scope;
                self.issue(stream.0, StreamOp::Comm { comm: comm.0, scope });
            }
            Instr::Exchange { stream, exchange, scope } => {
                let issue = self.exchange(program, exchange);
                // Every send and receive is a call of its own.
                for transfer in program.exchange(exchange) {
                    self.pay(costs.dispatch[program.group(transfer.group).dispatch() as usize], 1);
                }
                self.scope = scope;
                self.issue(stream.0, StreamOp::Exchange { issue, scope });
            }
            Instr::Record { stream, event } => {
                self.pay(costs.record, 1);
                let latest = &mut latest[event.0 as usize];
                *latest = Latest::NONE;
                let kinds = [(awaited.host, &mut latest.host, false), (awaited.streams, &mut latest.streams, true)];
                for (_, slot, late) in kinds.into_iter().filter(|(awaited, ..)| *awaited) {
                    *slot = self.plan.slots.len() as u32;
                    let at = self.next[stream.0 as usize];
                    self.plan.slots.push(Slot { event: Some(event), stream: stream.0, at, scope: self.scope });
                    self.issue(stream.0, StreamOp::Record { slot: *slot, late });
                }
            }
            Instr::Wait { stream, event } => {
                self.pay(costs.wait, 1);
                let slot = latest[event.0 as usize].streams;
                if slot != NONE && self.plan.slots[slot as usize].stream != stream.0 {
                    self.issue(stream.0, StreamOp::Wait { slot, scope: self.scope });
                }
            }
            Instr::HostWait { event } => {
                let slot = latest[event.0 as usize].host;
                if slot != NONE {
                    self.act(Action::Wait { slot });
                }
            }
            Instr::Host { dispatch, count } => self.pay(costs.dispatch[dispatch as usize], u64::from(count)),
            Instr::Graph { begins } => {
                if begins {
                    self.pay(costs.dispatch[Dispatch::GraphLaunch as usize], 1);
                }
                self.in_graph = begins;
            }
            Instr::Mark { mark } => {
                self.act(Action::Mark { mark });
                if matches!(program.marks[mark as usize], Mark::PhaseEnd(_)) {
                    self.issue(0, StreamOp::Mark { mark });
                }
            }
            Instr::Alloc { .. }
            | Instr::Free { .. }
            | Instr::Rename { .. }
            | Instr::Recategorize { .. }
            | Instr::EmptyCache => {}
        }
    }
}
