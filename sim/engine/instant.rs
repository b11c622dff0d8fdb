//! One instant of a run: what hosts and streams do when their turn comes.

use crate::program::KernelId;
use crate::units::Time;

use super::parts::{Actor, Doing, Event, NONE, Rank};
use super::plan::{Action, StreamOp, WHOLE};
use super::state::Engine;
use super::{EngineError, What};

impl Engine<'_> {
    /// Handles all events of the next instant.
    pub(super) fn instant(&mut self) -> Result<(), EngineError> {
        let Some(now) = self.queue.next_time() else {
            return Err(EngineError::Deadlock { time: Time(self.now), waits: self.waits() });
        };
        self.now = now;
        while self.queue.next_time() == Some(now)
            && let Some((_, event)) = self.queue.pop()
        {
            self.handle(event);
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.settle();
        Ok(())
    }

    /// Handles one event and all that it sets off at once.
    fn handle(&mut self, event: Event) {
        self.events += 1;
        match event {
            Event::Host { rank } => self.run_host(rank),
            Event::Ready { actor } => {
                self.account(actor / self.width);
                self.agenda.push(actor);
            }
            Event::Kernel { actor, version } => {
                if self.actors[actor as usize].running.version == version {
                    self.end_kernel(actor);
                }
            }
            Event::Comm { meeting, version } => {
                if self.meetings[meeting as usize].running.version == version {
                    self.end_comm(meeting);
                }
            }
            Event::Transfer { flight, version } => {
                if self.exchanges.flights[flight as usize].running.version == version {
                    self.end_transfer(flight);
                }
            }
            Event::Visible { rank, slot } => self.see(rank, slot),
        }
        while let Some(actor) = self.agenda.pop() {
            if actor % self.width == self.width - 1 {
                self.run_host(actor / self.width);
            } else {
                self.run_stream(actor);
            }
        }
    }

    /// The host acts until it has to wait. What it does is not seen by anyone but its own streams, and they know from when
    /// on they may run what it hands them: so it acts ahead of time, as far as nothing but time lies in between.
    fn run_host(&mut self, rank: u32) {
        self.account(rank);
        let host = self.host(rank);
        let class = self.ranks[rank as usize].class as usize;
        let Actor { mut at, mut step, reached, .. } = self.actors[host as usize];
        // When the action at `at` is due.
        let mut due = reached.max(self.now);
        let doing = loop {
            let mut next = at + 1;
            match self.plans[class].host[at as usize].action {
                Action::Issue { stream, queued } => {
                    let actor = self.actor(rank, stream);
                    if queued && self.actors[actor as usize].queued >= self.options.queue_limit {
                        // The default stream has work as long as its queue is full, so nobody asks what its host does.
                        if due > self.now && stream > 0 {
                            self.queue.push(due, Event::Host { rank });
                            break Doing::Idle;
                        }
                        break Doing::Room { stream };
                    }
                    self.issue(actor, due, queued);
                }
                Action::Wait { slot } => {
                    if self.seen[(rank * self.slots + slot) as usize] <= step {
                        if due > self.now {
                            self.queue.push(due, Event::Host { rank });
                            break Doing::Idle;
                        }
                        self.await_slot(rank, host, slot);
                        break Doing::Event { slot };
                    }
                }
                Action::Mark { mark } => {
                    if let Some(index) = self.mark_slot(rank, step, mark) {
                        self.marks[index].0 = Some(Time(due));
                    }
                }
                Action::StepEnd => {
                    if due > self.now {
                        self.queue.push(due, Event::Host { rank });
                        break Doing::Idle;
                    }
                    for stream in 0..self.width - 1 {
                        self.issue(rank * self.width + stream, due, false);
                    }
                    self.end_step(step);
                    next = 0;
                    step += 1;
                }
            }
            if self.options.record {
                self.note_action(rank, step - u32::from(next == 0), (at, next), due);
            }
            at = next;
            if step == self.steps {
                break Doing::Done;
            }
            due += self.host_cost(rank, next);
        };
        let host = &mut self.actors[host as usize];
        (host.at, host.step, host.reached, host.doing) = (at, step, due, doing);
    }

    /// What a rank's host pays before an action \[ps\].
    #[inline]
    pub(super) fn host_cost(&self, rank: u32, action: u32) -> u64 {
        let cost = self.plans[self.ranks[rank as usize].class as usize].host[action as usize].cost;
        self.paces.as_ref().map_or(cost, |paces| paces[rank as usize].host.of_ps(cost))
    }

    /// Keeps when a watched host went past action `at` of the last step, or began the step.
    fn note_action(&mut self, rank: u32, step: u32, (at, next): (u32, u32), when: u64) {
        let Rank { class, watched, .. } = self.ranks[rank as usize];
        if watched && step + 1 == self.options.steps {
            self.acted[class as usize][at as usize + 1] = when;
        } else if watched && next == 0 && step + 2 == self.options.steps {
            self.acted[class as usize][0] = when;
        }
    }

    /// Hands a stream its next operation, which it may run from `due` on.
    fn issue(&mut self, actor: u32, due: u64, queued: bool) {
        let ready = &mut self.ready[actor as usize];
        ready.push_back(due);
        let alone = ready.len() == 1;
        let stream = &mut self.actors[actor as usize];
        stream.queued += u32::from(queued);
        if alone && stream.doing == Doing::Idle {
            self.come_back(actor, due);
        }
    }

    /// A stream that has nothing to do looks again at `due`.
    fn come_back(&mut self, actor: u32, due: u64) {
        if due > self.now {
            self.queue.push(due, Event::Ready { actor });
        } else {
            self.agenda.push(actor);
        }
    }

    /// The stream goes through what has been issued until it is busy, has to wait, or has nothing left.
    fn run_stream(&mut self, actor: u32) {
        let rank = actor / self.width;
        let class = self.ranks[rank as usize].class as usize;
        loop {
            let stream = &self.actors[actor as usize];
            let step = stream.step;
            if stream.doing != Doing::Idle {
                return;
            }
            let Some(&due) = self.ready[actor as usize].front() else { return };
            if due > self.now {
                return self.come_back(actor, due);
            }
            match self.plans[class].ops[stream.at as usize] {
                StreamOp::Kernel { kernel, .. } => return self.begin_kernel(actor, kernel),
                StreamOp::Comm { comm, .. } => return self.arrive(actor, comm),
                StreamOp::Exchange { issue, .. } => return self.post(actor, issue),
                StreamOp::Wait { slot, .. } => {
                    if self.wait(rank, actor, slot) {
                        return;
                    }
                }
                StreamOp::Record { slot, late } => {
                    let latency = self.job.classes[class].costs.event_latency.0;
                    if late && latency > 0 {
                        self.queue.push(self.now + latency, Event::Visible { rank, slot });
                    } else {
                        self.see(rank, slot);
                    }
                }
                StreamOp::Mark { mark } => {
                    if let Some(index) = self.mark_slot(rank, step, mark) {
                        self.marks[index].1 = Some(Time(self.now));
                    }
                }
                StreamOp::StepEnd => {
                    self.pass(actor);
                    let stream = &mut self.actors[actor as usize];
                    stream.at = stream.first;
                    stream.step += 1;
                    self.end_step(step);
                    continue;
                }
            }
            self.pass(actor);
        }
    }

    /// Lets a stream wait for a slot; false if there is nothing to wait for.
    fn wait(&mut self, rank: u32, actor: u32, slot: u32) -> bool {
        if self.seen[(rank * self.slots + slot) as usize] > self.actors[actor as usize].step {
            return false;
        }
        self.await_slot(rank, actor, slot);
        true
    }

    /// An actor waits for a slot.
    fn await_slot(&mut self, rank: u32, actor: u32, slot: u32) {
        let waiting = &mut self.actors[actor as usize];
        waiting.doing = Doing::Event { slot };
        waiting.next_waiter = std::mem::replace(&mut self.waiter[(rank * self.slots + slot) as usize], actor);
    }

    /// A slot's event becomes visible: everyone who waits for it looks again.
    fn see(&mut self, rank: u32, slot: u32) {
        self.account(rank);
        let index = (rank * self.slots + slot) as usize;
        self.seen[index] += 1;
        let mut actor = std::mem::replace(&mut self.waiter[index], NONE);
        while actor != NONE {
            self.agenda.push(actor);
            let waiting = &mut self.actors[actor as usize];
            waiting.doing = Doing::Idle;
            actor = std::mem::replace(&mut waiting.next_waiter, NONE);
        }
    }

    fn begin_kernel(&mut self, actor: u32, kernel: u32) {
        self.account(actor / self.width);
        let index = (actor / self.width) as usize;
        let rank = &mut self.ranks[index];
        let plan = self.plans[rank.class as usize].kernels[kernel as usize];
        if plan.compute {
            rank.spent.compute += 1;
        } else {
            rank.spent.communication += 1;
        }
        rank.filling += plan.share;
        if plan.share > 0 && rank.filling > WHOLE {
            self.crowd(actor / self.width);
        }
        let stream = &mut self.actors[actor as usize];
        stream.doing = Doing::Kernel;
        stream.reached = self.now;
        let work = self.paces.as_ref().map_or(plan.work, |paces| paces[index].of(plan.bound).of_ps(plan.work));
        stream.running.begin(work, self.now);
        self.fresh.push(actor);
    }

    fn end_kernel(&mut self, actor: u32) {
        self.account(actor / self.width);
        let rank = &mut self.ranks[(actor / self.width) as usize];
        let (class, watched) = (rank.class as usize, rank.watched);
        let Actor { at, reached, step, .. } = self.actors[actor as usize];
        let StreamOp::Kernel { kernel, scope } = self.plans[class].ops[at as usize] else {
            unreachable!("the stream runs a kernel");
        };
        let plan = self.plans[class].kernels[kernel as usize];
        if plan.compute {
            rank.spent.compute -= 1;
        } else {
            rank.spent.communication -= 1;
        }
        let before = rank.filling;
        rank.filling -= plan.share;
        if plan.share > 0 && before > WHOLE {
            self.crowd(actor / self.width);
        }
        if watched {
            let busy = self.busy_at(class, step);
            let times = &mut self.busy[busy];
            times.kernel[kernel as usize] += Time(self.now - reached);
            if plan.compute {
                times.owner[scope.part()] += Time(self.now - reached);
            }
        }
        if let Some(noted) = self.noted.as_mut().filter(|_| watched) {
            noted.op(class, (step, at), self.now - reached);
        }
        self.span(actor, reached, What::Kernel(KernelId(kernel)), scope);
        self.leave(actor);
    }

    /// What kernels take of a rank's processors changes, from or to more than there is.
    fn crowd(&mut self, rank: u32) {
        if !std::mem::replace(&mut self.ranks[rank as usize].crowded, true) {
            self.crowds.push(rank);
        }
    }
}
