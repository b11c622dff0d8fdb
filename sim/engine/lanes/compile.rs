//! Writes the tape: goes through the job once without times, class by class, and notes what can happen next.
//!
//! Hosts go no further than their streams need, so that few times have to be kept. If nothing can go on that way, because a stream waits
//! for another class that waits for what a host has not issued yet, every host takes one step.

mod progress;

use std::collections::BTreeMap;

use super::super::cast::Cast;
use super::super::plan::{Action, Plan, StreamOp};
use super::super::{Job, Options};
use super::tape::{Cut, End, Issued, Kept, Lane, Meet, Message, Register, Tape, Tick};
use crate::program::{Direction, GroupId};
use progress::{Class, Stream};

/// Writes the tape of a checked job; none if it cannot go on at some point. If it has further rounds, also the cuts between those that are
/// written: no class begins a round before the others have come as far as they can without it.
pub(super) fn compile(job: Job<'_>, plans: &[Plan], options: Options, further: bool) -> Option<(Tape, Vec<Cut>)> {
    let mut writer = Writer::new(job, plans, options, further);
    writer.write()?;
    Some(writer.finish())
}

/// An exchange under way, by class and stream: where its end is kept, and how many messages are missing.
#[derive(Clone, Copy)]
struct Open {
    until: Register,
    missing: u32,
}

struct Writer<'a> {
    job: Job<'a>,
    plans: &'a [Plan],
    limit: u32,
    classes: Vec<Class>,
    /// Classes that meet in a group, by group and class.
    meets: BTreeMap<(u16, u32), Vec<u32>>,
    /// Who has arrived, by group, stream and the first class that meets there.
    arrived: BTreeMap<(u16, u32, u32), Vec<(Lane, u32)>>,
    channel_of: Vec<u32>,
    transfers: u32,
    /// Ends of messages without the other, by channel: turn, whether sent, and the end.
    waiting: BTreeMap<u32, Vec<(u32, bool, End)>>,
    open: BTreeMap<(u32, u32), Open>,
    tape: Tape,
    cuts: Vec<Cut>,
}

impl<'a> Writer<'a> {
    fn new(job: Job<'a>, plans: &'a [Plan], options: Options, further: bool) -> Writer<'a> {
        let transfers = job.classes.iter().map(|class| class.program.transfers.len()).max().unwrap_or(0) as u32;
        let (channel_of, _) = Cast::new(job, true).channels(transfers);
        let classes = plans.iter().map(|plan| Class::new(plan, options, further)).collect();
        let groups = job.classes[0].program.groups.iter().map(|group| group.name.clone()).collect();
        let tape = Tape { groups, ..Tape::default() };
        Writer {
            job,
            plans,
            limit: options.queue_limit,
            classes,
            meets: BTreeMap::new(),
            arrived: BTreeMap::new(),
            channel_of,
            transfers,
            waiting: BTreeMap::new(),
            open: BTreeMap::new(),
            tape,
            cuts: vec![],
        }
    }

    fn write(&mut self) -> Option<()> {
        loop {
            let mut moved = false;
            for class in 0..self.plans.len() {
                moved |= self.go_on(class);
            }
            if (0..self.plans.len()).all(|class| self.is_over(class)) {
                return Some(());
            }
            moved = moved || self.begin();
            if !moved {
                for class in 0..self.plans.len() {
                    moved |= self.act(class);
                }
            }
            if !moved {
                return None;
            }
        }
    }

    fn finish(mut self) -> (Tape, Vec<Cut>) {
        for class in 0..self.plans.len() {
            self.pay(class);
        }
        self.tape.registers = self.classes.iter().map(|class| class.registers).collect();
        self.tape.queues =
            self.classes.iter().map(|class| class.streams.iter().map(|stream| stream.queue).collect()).collect();
        (self.tape, self.cuts)
    }

    fn is_over(&self, class: usize) -> bool {
        let Class { action, streams, .. } = &self.classes[class];
        let over = |stream: &Stream| self.plans[class].ops[stream.at] == StreamOp::StepEnd;
        *action == self.plans[class].host.len() && streams.iter().all(over)
    }

    /// Lets the classes that have to wait with the earliest round begin it. Where the first class does, the tape is cut.
    fn begin(&mut self) -> bool {
        let rounds = |class: &Class| class.begins_round().then_some(class.may);
        let Some(first) = self.classes.iter().filter_map(rounds).min() else { return false };
        if rounds(&self.classes[0]) == Some(first) {
            self.cut();
        }
        let begin = self.classes.iter_mut().filter(|class| rounds(class) == Some(first));
        begin.for_each(|class| class.may += 1);
        true
    }

    /// Lets a class go on as far as its streams do not wait for others.
    fn go_on(&mut self, class: usize) -> bool {
        let mut moved = self.drain(class);
        while !self.classes[class].waits() && self.act(class) {
            moved = true;
        }
        moved
    }

    /// The host's next action; false if it has to wait.
    fn act(&mut self, class: usize) -> bool {
        let plan = &self.plans[class];
        let Some(&op) = plan.host.get(self.classes[class].action) else { return false };
        match op.action {
            Action::Issue { stream, queued } => {
                let lane = Lane { class: class as u32, stream: stream.into() };
                let limit = self.limit;
                let &mut Stream { taken, left, queue, .. } = self.stream(lane);
                if queued && taken >= limit && left + limit <= taken {
                    return false;
                }
                self.classes[class].owed += op.cost;
                if queued {
                    self.stream(lane).taken += 1;
                    if queue > 0 {
                        self.pay(class);
                        self.tape.ticks.push(Tick::Room { lane });
                    }
                }
                let Stream { at, issued, .. } = self.stream(lane);
                let index = *at + issued.len();
                issued.push_back(Some(Issued::Now));
                self.drain(class);
                // What has not been reached was issued before anything that the host does next.
                if self.stream(lane).at <= index {
                    let kept = match plan.ops[index] {
                        StreamOp::Wait { .. } | StreamOp::Mark { .. } | StreamOp::StepEnd => None,
                        _ => Some(Issued::At(self.keep(class))),
                    };
                    if let Some(last) = self.stream(lane).issued.back_mut() {
                        *last = kept;
                    }
                }
            }
            Action::Wait { slot } => {
                if self.classes[class].slots[slot as usize].0.is_none() {
                    return false;
                }
                self.classes[class].owed += op.cost;
                self.pay(class);
                let event = self.consume(class, slot);
                self.tape.ticks.push(Tick::HostWait { class: class as u32, event });
            }
            Action::Mark { .. } | Action::StepEnd => self.classes[class].owed += op.cost,
        }
        self.classes[class].action += 1;
        true
    }

    /// Lets all streams of a class go on as far as they can.
    fn drain(&mut self, class: usize) -> bool {
        let mut moved = false;
        loop {
            let mut again = false;
            for stream in 0..self.classes[class].streams.len() as u32 {
                while self.reach(Lane { class: class as u32, stream }) {
                    again = true;
                }
            }
            if !again {
                return moved;
            }
            moved = true;
        }
    }

    /// A stream goes past its next operation, or comes to one at which it meets others; false if it cannot.
    fn reach(&mut self, lane: Lane) -> bool {
        let class = lane.class as usize;
        let stream = &self.classes[class].streams[lane.stream as usize];
        let (Some(&issued), false) = (stream.issued.front(), stream.away) else { return false };
        let at = stream.at;
        if lane.stream == 0 && self.classes[class].begins_round() {
            return false;
        }
        match self.plans[class].ops[at] {
            StreamOp::Wait { slot, .. } => {
                if self.classes[class].slots[slot as usize].0.is_none() {
                    return false;
                }
                let event = self.consume(class, slot);
                self.tape.ticks.push(Tick::Wait { lane, event });
            }
            StreamOp::Mark { .. } | StreamOp::StepEnd => {}
            StreamOp::Kernel { kernel, .. } => {
                let issued = self.issued(class, issued);
                let bound = self.plans[class].kernels[kernel as usize].bound;
                self.tape.ticks.push(Tick::Kernel { lane, issued, op: at as u32, bound });
                self.release(class, issued);
                self.stream(lane).left += 1;
            }
            StreamOp::Record { slot, late } => {
                let issued = self.issued(class, issued);
                let into = self.register(class);
                let later = if late { self.job.classes[class].costs.event_latency.0 as f64 } else { 0.0 };
                self.tape.ticks.push(Tick::Record { lane, issued, later, into });
                self.release(class, issued);
                self.classes[class].slots[slot as usize].0 = Some(into);
                self.classes[class].recorded += 1;
                if self.classes[class].slots[slot as usize].1 == 0 {
                    self.classes[class].free.push(into);
                }
            }
            StreamOp::Comm { comm, .. } => {
                self.arrive(lane, issued);
                let group = self.job.classes[class].program.comms[comm as usize].group;
                self.meet(lane, at as u32, group);
                return true;
            }
            StreamOp::Exchange { issue, .. } => {
                self.arrive(lane, issued);
                self.post(lane, issue);
                return true;
            }
        }
        self.pass(lane);
        true
    }

    fn cut(&mut self) {
        let mut kept: Vec<Vec<(Kept, Register)>> = self.classes.iter().map(Class::kept).collect();
        for (&(class, stream), open) in &self.open {
            kept[class as usize].push((Kept::Exchange { stream }, open.until));
        }
        let places = self.classes.iter().map(|class| class.streams.iter().map(|stream| stream.at).collect()).collect();
        self.cuts.push(Cut { tick: self.tape.ticks.len(), kept, places });
    }

    /// A stream comes to where it meets others.
    fn arrive(&mut self, lane: Lane, issued: Option<Issued>) {
        let class = lane.class as usize;
        let issued = self.issued(class, issued);
        self.tape.ticks.push(Tick::Arrive { lane, issued });
        self.release(class, issued);
        self.stream(lane).away = true;
    }

    fn meet(&mut self, lane: Lane, op: u32, group: GroupId) {
        let all = self.classes_of(group, lane.class);
        let key = (group.0, lane.stream, all[0]);
        let arrived = self.arrived.entry(key).or_default();
        arrived.push((lane, op));
        if arrived.len() < all.len() {
            return;
        }
        let parts = std::mem::take(arrived);
        self.tape.ticks.push(Tick::Meet { meet: self.tape.meets.len() as u32 });
        self.tape.meets.push(Meet { group: group.0, parts: parts.clone() });
        for (lane, _) in parts {
            self.leave(lane, None);
        }
    }

    /// The classes that meet in the copies of a group that a class belongs to, in rising order.
    fn classes_of(&mut self, group: GroupId, class: u32) -> Vec<u32> {
        let job = self.job;
        let find = || {
            let of = |rank: u32| job.class_of[rank as usize];
            let first = job.class_of.iter().position(|&of| of == class).unwrap_or(0) as u32;
            let members = job.classes[0].program.group(group).members(first);
            let mut classes: Vec<u32> = members.map(of).collect();
            classes.sort_unstable();
            classes.dedup();
            classes
        };
        self.meets.entry((group.0, class)).or_insert_with(find).clone()
    }

    /// A stream posts its sends and receives.
    fn post(&mut self, lane: Lane, issue: u32) {
        let class = lane.class as usize;
        let issue = self.plans[class].issues[issue as usize];
        let until = self.register(class);
        self.tape.ticks.push(Tick::Post { lane, into: until });
        self.open.insert((lane.class, lane.stream), Open { until, missing: issue.count });
        if issue.count == 0 {
            self.end_exchange(lane);
        }
        for at in issue.first..issue.first + issue.count {
            let leg = self.plans[class].legs[at as usize];
            let end = End { lane, until, leg: at, transfer: leg.transfer };
            let channel = self.channel_of[class * self.transfers as usize + leg.transfer as usize];
            let sends = leg.direction == Direction::Send;
            let waiting = self.waiting.entry(channel).or_default();
            let Some(other) = waiting.iter().position(|&(turn, sent, _)| turn == leg.turn && sent != sends) else {
                waiting.push((leg.turn, sends, end));
                continue;
            };
            let (.., mate) = waiting.remove(other);
            let (from, to) = if sends { (end, mate) } else { (mate, end) };
            let group = self.job.classes[class].program.transfers[leg.transfer as usize].group.0;
            self.tape.ticks.push(Tick::Message { message: self.tape.messages.len() as u32 });
            self.tape.messages.push(Message { group, from, to });
            for lane in [from.lane, to.lane] {
                let open = self.open.get_mut(&(lane.class, lane.stream)).expect("its exchange is under way");
                open.missing -= 1;
                if open.missing == 0 {
                    self.end_exchange(lane);
                }
            }
        }
    }

    fn end_exchange(&mut self, lane: Lane) {
        let open = self.open.remove(&(lane.class, lane.stream)).expect("its exchange is under way");
        self.leave(lane, Some(open.until));
        self.classes[lane.class as usize].free.push(open.until);
    }

    /// A stream leaves where it met others.
    fn leave(&mut self, lane: Lane, at: Option<Register>) {
        self.tape.ticks.push(Tick::Leave { lane, at });
        let stream = self.stream(lane);
        stream.away = false;
        stream.left += 1;
        self.pass(lane);
    }

    fn pass(&mut self, lane: Lane) {
        let stream = self.stream(lane);
        stream.issued.pop_front();
        stream.at += 1;
    }

    fn stream(&mut self, lane: Lane) -> &mut Stream {
        &mut self.classes[lane.class as usize].streams[lane.stream as usize]
    }

    /// When an operation was issued; if it is now, what the host owes is paid first.
    fn issued(&mut self, class: usize, issued: Option<Issued>) -> Issued {
        let issued = issued.unwrap_or(Issued::Now);
        if issued == Issued::Now {
            self.pay(class);
        }
        issued
    }

    fn release(&mut self, class: usize, issued: Issued) {
        if let Issued::At(register) = issued {
            self.classes[class].free.push(register);
        }
    }

    fn pay(&mut self, class: usize) {
        let cost = std::mem::take(&mut self.classes[class].owed);
        if cost > 0 {
            self.tape.ticks.push(Tick::Pay { class: class as u32, cost: cost as f64 });
        }
    }

    /// Keeps where the host stands.
    fn keep(&mut self, class: usize) -> Register {
        self.pay(class);
        let into = self.register(class);
        self.tape.ticks.push(Tick::Keep { class: class as u32, into });
        into
    }

    fn register(&mut self, class: usize) -> Register {
        let class = &mut self.classes[class];
        class.free.pop().unwrap_or_else(|| {
            class.registers += 1;
            class.registers - 1
        })
    }

    /// The register of a slot for one that waits for it; given up with the last.
    fn consume(&mut self, class: usize, slot: u32) -> Register {
        let class = &mut self.classes[class];
        let (register, waits) = &mut class.slots[slot as usize];
        let register = register.expect("it was looked at");
        *waits -= 1;
        if *waits == 0 {
            class.free.push(register);
        }
        register
    }
}
