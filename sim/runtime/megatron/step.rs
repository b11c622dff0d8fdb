//! A pipeline rank's training step: the schedule's actions in order, then gradients, optimizer, parameters
//! (`core/pipeline_parallel/schedules.py`, `megatron/training/training.py`, `train_step`, 0.16.1).

use std::collections::BTreeMap;

use super::chunk::{Chunk, ChunkFrame};
use super::counts::Counts;
use super::data::read_back;
use super::groups::Groups;
use super::job::{CudaGraphs, Engine, Job};
use super::optimizer::Shards;
use super::p2p::{End, P2p, Peer};
use super::replicas::Shared;
use super::stamped::Written;
use super::vocabulary::Vocabulary;
use crate::program::builder::Section;
use crate::program::{Budget, BufferId, Category, Dispatch, EventId, Mark, Pass, Program, ScopeId, StreamId};
use crate::runtime::eager::main_gradients::WeightWork;
use crate::runtime::eager::{COMPUTE, Eager, Later, Storage};
use crate::schedule::{Action, Kind, Lists, Placement, Schedule};

/// What is known of one micro-batch on one stage.
pub(super) type Key = (u16, u32);

/// A tensor from another stage, and the event that says it is there, until somebody has waited for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) storage: Storage,
    pub(super) event: Option<EventId>,
}

/// A micro-batch between its forward and its backward.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) frame: ChunkFrame,
    pub(super) input: Option<Storage>,
    /// What is left of an output that was sent: one number (`deallocate_output_tensor`). Of the last stage, the loss.
    pub(super) output: Option<Storage>,
}

/// The last input that a chunk was given, which its decoder names until it is given the next, and with it the input's
/// gradient (`set_input_tensor`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    key: Key,
    input: Storage,
    gradient: Option<Storage>,
}

/// A send that nobody has waited for yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) storage: Storage,
    pub(super) event: EventId,
}

/// A pipeline rank, writing its program.
pub(super) struct Rank<'j> {
    pub(super) job: &'j Job,
    pub(super) schedule: &'j Schedule,
    pub(super) rank: u32,
    pub(super) groups: Groups,
    /// The stage of each of its chunks.
    pub(super) stages: Vec<usize>,
    pub(super) chunks: Vec<Chunk>,
    pub(super) scopes: Vec<ScopeId>,
    pub(super) eager: Eager,
    /// How it shares its parameters with replicas: those that all ranks have, and experts that they do not.
    pub(super) data: Vec<Shared>,
    pub(super) shards: Shards,
    pub(super) p2p: P2p,
    pub(super) counts: Counts,
    pub(super) inputs: BTreeMap<Key, Received>,
    pub(super) gradients: BTreeMap<Key, Received>,
    pub(super) outputs: BTreeMap<Key, Storage>,
    pub(super) input_gradients: BTreeMap<Key, Storage>,
    pub(super) open: BTreeMap<Key, Open>,
    /// By chunk, the last input it was given.
    pub(super) given: Vec<Option<Given>>,
    /// By chunk, what the last input and its gradient are known as from one step to the next.
    pub(super) kept: Vec<Option<[BufferId; 2]>>,
    /// Weight gradients that the first halves of backwards have left.
    pub(super) deferred: BTreeMap<Key, Vec<WeightWork>>,
    /// Whether backwards come in halves.
    pub(super) halves: bool,
    /// Sends that are waited for at the end of the iteration, where backwards come in halves.
    pub(super) unwaited: Vec<EventId>,
    /// Sends forward and backward that have been issued beside the computation.
    pub(super) sent: [Option<Sent>; 2],
    /// What Python's variables still name: the last gradients received and made.
    pub(super) named: [Option<Storage>; 2],
    /// The loss that the loop's variable names, and its count of tokens.
    pub(super) loss: Option<[Storage; 2]>,
    /// What the last stage keeps for the log.
    pub(super) reports: Vec<Storage>,
    /// Copies of main gradients in fp32, where those are not: what they are known as from one step to the next.
    pub(super) copies: Vec<BufferId>,
    /// Chunks whose gradients are being reduced.
    pub(super) started: Vec<bool>,
    /// Its part of a vocabulary that pipeline ranks share.
    pub(super) vocabulary: Option<Vocabulary>,
    /// The stream of experts' exchanges, where a step's forward and backward run block beside block.
    pub(super) exchanges: Option<StreamId>,
    /// The end of the last forward of these, which nothing has waited for yet.
    pub(super) after: Option<EventId>,
    /// Weight gradients of the last backward of these, yet to be made.
    pub(super) left: (Option<ScopeId>, Vec<Later>),
    /// What micro-batches write alike; none: each is written on its own.
    pub(super) stamps: Option<Written>,
}

/// What a computation has been given, and the scope it came from.
pub(super) struct Begun {
    pub(super) before: ScopeId,
    pub(super) tensor: Option<Storage>,
}

impl<'j> Rank<'j> {
    /// The rank's program. Where it is `stamped`, what micro-batches do alike is run once.
    pub(super) fn program(
        (job, budget): (&'j Job, &Budget),
        (schedule, lists): (&'j Schedule, &Lists),
        rank: u32,
        stamped: bool,
    ) -> Program {
        let mut run = Rank::new((job, budget), schedule, rank);
        run.stamps = stamped.then(Written::default);
        run.setup();
        run.capture(lists);
        run.eager.program.section(Section::Step);
        run.step(lists);
        if job.graphs == CudaGraphs::Iteration {
            run.eager.program.take_graphs_memory_once();
        }
        run.eager.program.finish()
    }

    pub(super) fn chunk_of(&self, stage: u16) -> usize {
        usize::from(stage) / self.schedule.ranks()
    }

    /// Whom a message goes to or comes from. Where stages go round and round, forward is towards the next rank, from the
    /// last to the first too.
    fn peer(&self, kind: Kind, other: usize) -> Peer {
        let next = match self.job.pipeline.schedule.placement {
            Placement::Loop => matches!(kind, Kind::SendForward | Kind::RecvBackward),
            Placement::V => self.schedule.rank_of[other] > self.rank,
        };
        if next { Peer::Next } else { Peer::Previous }
    }

    pub(super) fn end(&self, action: Action) -> End {
        let stage = usize::from(action.stage);
        let other = match action.kind {
            Kind::SendForward | Kind::RecvBackward => stage + 1,
            _ => stage - 1,
        };
        End { action, peer: self.peer(action.kind, other) }
    }

    fn step(&mut self, lists: &Lists) {
        self.zero();
        self.phase_end("zero");
        self.eager.category = Category::Activation;
        self.begin_iteration();
        let tokens = self.eager.storage(4, "total_num_tokens");
        let list = lists.rank(self.rank as usize);
        let total = list.iter().filter(|action| action.kind == Kind::Forward).count();
        let warmup = list.iter().take_while(|action| !action.kind.is_backward());
        // The last forward before the first backward belongs to the steady state.
        let before = warmup.filter(|action| action.kind == Kind::Forward).count();
        let all_first = before == total && self.job.pipeline.virtual_stages > 1;
        let warmup = if all_first { total } else { before.saturating_sub(1) };
        self.counts = Counts { warmup, total, ..Counts::default() };
        if self.aligns_gather() {
            (0..2).for_each(|chunk| self.prefetch(chunk));
        }
        if let Some(vocabulary) = &mut self.vocabulary {
            vocabulary.begin(list);
        }
        let mut before = Some(self.eager.program.written());
        for portion in lists.portions(self.rank as usize) {
            self.portion(portion);
            // A backward is twice as long as its forward, and messages come with both.
            if let Some(before) = before.take_if(|_| self.counts.forwards > 0) {
                self.eager.program.reserve((self.eager.program.written() - before) * 4 * total);
            }
        }
        self.wait_for_last();
        self.finalize();
        self.eager.release(tokens);
        self.drain();
        self.close_vocabulary();
        self.keep();
        self.end_iteration();
        self.phase_end("forward-backward");
        self.update();
        self.phase_end("optimizer");
    }

    fn portion(&mut self, portion: &[Action]) {
        if self.exchanges.is_some() && portion.iter().any(|action| action.kind.computes()) {
            self.together(portion);
        } else if portion.iter().any(|action| action.kind.computes()) {
            for &action in portion {
                self.compute(action);
            }
        } else if let [action] = portion
            && self.vocabulary.is_some()
            && !action.kind.is_message()
        {
            self.of_vocabulary(*action);
        } else {
            let ahead = portion.iter().any(|action| matches!(action.kind, Kind::SendForward | Kind::RecvForward));
            if let (Some(stream), Some(done), true) = (self.exchanges, self.after, ahead) {
                // The last part may have run on the default stream (`f_schedule_plan.wait_current_stream`).
                self.eager.program.wait(stream, done);
                self.eager.stream = stream;
            }
            self.exchange(portion);
            self.eager.stream = COMPUTE;
            self.counts.portions += 1;
        }
    }

    fn compute(&mut self, action: Action) {
        let key = (action.stage, action.microbatch);
        match action.kind {
            Kind::Forward => self.forward(key),
            Kind::Backward => self.backward(key),
            Kind::Input => {
                self.eager.deferred = Some(vec![]);
                self.backward(key);
                self.deferred.insert(key, self.eager.deferred.take().unwrap_or_default());
            }
            Kind::Weight => self.weight(key),
            _ => unreachable!("of the actions these compute"),
        }
        self.counts_of(action.kind == Kind::Forward);
    }

    /// A computation has ended.
    pub(super) fn counts_of(&mut self, forward: bool) {
        self.counts.last_was_forward = forward;
        self.counts.portions = 0;
    }

    fn forward(&mut self, key: Key) {
        if self.vocabulary.is_some() {
            return self.forward_without_tables(key);
        }
        let chunk = self.chunk_of(key.0);
        let Begun { before, tensor: input } = self.begin_forward(key);
        let held = input.map(|input| self.eager.retain(input));
        let (frame, output) = self.run_forward(chunk, input);
        self.eager.program.enter(before);
        self.end_forward(key, (frame, output), held);
    }

    /// What a forward is given.
    pub(super) fn begin_forward(&mut self, key: Key) -> Begun {
        self.align_gather();
        self.counts.forwards += 1;
        // In the steady state the schedule repeats itself after a micro-batch, or after a group of them on all chunks.
        let (ranks, chunks) = (self.job.mesh.pp as usize, self.job.pipeline.virtual_stages as usize);
        let round = if chunks > 1 { ranks * chunks } else { 1 };
        if self.counts.steady().is_some_and(|steady| steady.is_multiple_of(round)) {
            self.eager.program.begin_round();
        }
        let chunk = self.chunk_of(key.0);
        let input = (key.0 > 0).then(|| self.received(key));
        let last = usize::from(key.0) + 1 == self.schedule.stages;
        let before = self.eager.program.enter(self.scopes[chunk]);
        self.eager.program.set_pass(Pass::Forward);
        self.eager.category = Category::Activation;
        let deepspeed = self.job.engine == Engine::DeepSpeed;
        if deepspeed && (key.0 == 0 || last) {
            self.load();
        }
        let input = input.map(|input| if deepspeed { self.whole(input, Category::Activation) } else { input });
        self.eager.program.host(Dispatch::StepOverhead, 1);
        if let Some(input) = input {
            self.give(chunk, key, input);
        }
        self.eager.fresh_weights = key.1 == 0;
        Begun { before, tensor: input }
    }

    /// What becomes of what a forward has made.
    pub(super) fn end_forward(&mut self, key: Key, (mut frame, output): (ChunkFrame, Storage), held: Option<Storage>) {
        self.eager.fresh_weights = false;
        let last = usize::from(key.0) + 1 == self.schedule.stages;
        let deepspeed = self.job.engine == Engine::DeepSpeed;
        let output = if deepspeed && !last { self.part(output, Category::Activation) } else { output };
        let report = frame.take_report();
        let open = Open { frame, input: held, output: None };
        if last {
            if self.job.checks_for_nan {
                read_back(&mut self.eager.program, "aten.isnan");
            }
            if let Some(report) = report {
                self.reports.push(report.report);
                for storage in self.loss.replace([output, report.tokens]).into_iter().flatten() {
                    self.eager.release(storage);
                }
            }
        } else if self.schedule.crosses(usize::from(key.0)) {
            self.outputs.insert(key, output);
        } else {
            self.inputs.insert((key.0 + 1, key.1), Received { storage: output, event: None });
        }
        self.open.insert(key, open);
    }

    /// What another stage has sent, once it is there.
    pub(super) fn received(&mut self, key: Key) -> Storage {
        let received = self.inputs.remove(&key).expect("a schedule receives before it computes");
        if let Some(event) = received.event {
            self.eager.program.wait(COMPUTE, event);
        }
        received.storage
    }

    fn backward(&mut self, key: Key) {
        let chunk = self.chunk_of(key.0);
        let (open, Begun { before, tensor: gradient }) = self.begin_backward(key);
        let made = self.run_backward(chunk, open.frame, gradient);
        self.eager.program.enter(before);
        self.end_backward(key, [open.output, open.input], made);
    }

    /// What a backward is given.
    pub(super) fn begin_backward(&mut self, key: Key) -> (Open, Begun) {
        let (stage, chunk) = (usize::from(key.0), self.chunk_of(key.0));
        let last = stage + 1 == self.schedule.stages;
        let deepspeed = self.job.engine == Engine::DeepSpeed;
        let gradient = (!last).then(|| {
            let received = self.gradients.remove(&key).expect("a schedule receives before it computes");
            if let Some(event) = received.event {
                self.eager.program.wait(COMPUTE, event);
            }
            received.storage
        });
        self.eager.program.set_pass(Pass::Backward);
        let gradient = gradient.map(|gradient| {
            if !deepspeed {
                return gradient;
            }
            self.gather_output(key);
            self.whole(gradient, Category::BackwardTemporary)
        });
        let gradient = gradient.or_else(|| self.gradient_of_head());
        let open = self.open.remove(&key).expect("a backward follows its forward");
        self.overlap_reduction(chunk);
        let before = self.eager.program.enter(self.scopes[chunk]);
        self.eager.program.set_pass(Pass::Backward);
        (open, Begun { before, tensor: gradient })
    }

    /// What becomes of what a backward has made; `held` goes.
    pub(super) fn end_backward(&mut self, key: Key, held: [Option<Storage>; 2], made: Option<Storage>) {
        let (stage, chunk) = (usize::from(key.0), self.chunk_of(key.0));
        let deepspeed = self.job.engine == Engine::DeepSpeed;
        for storage in held.into_iter().flatten() {
            self.eager.release(storage);
        }
        self.counts.backwards += 1;
        self.start_reductions();
        let Some(made) = made else { return };
        if let Some(vocabulary) = self.vocabulary.as_mut().filter(|_| stage == 0) {
            return vocabulary.words_gradient(made);
        }
        if let Some(given) = self.given[chunk].as_mut().filter(|given| given.key == key) {
            given.gradient = Some(self.eager.retain(made));
        }
        if deepspeed {
            let part = self.part(made, Category::BackwardTemporary);
            self.input_gradients.insert(key, part);
        } else if self.schedule.crosses(stage - 1) {
            let named = self.eager.retain(made);
            self.name(1, named);
            self.input_gradients.insert(key, made);
        } else {
            self.gradients.insert((key.0 - 1, key.1), Received { storage: made, event: None });
        }
    }

    /// The second half of a backward.
    fn weight(&mut self, key: Key) {
        let list = self.deferred.remove(&key).expect("a backward's halves are in order");
        let before = self.eager.program.enter(self.scopes[self.chunk_of(key.0)]);
        self.eager.program.set_pass(Pass::Backward);
        self.eager.run_deferred(list);
        self.eager.program.enter(before);
    }

    /// A chunk is given an input, and lets go of the one before: that of the step before, at first.
    pub(super) fn give(&mut self, chunk: usize, key: Key, input: Storage) {
        let given = Given { key, input: self.eager.retain(input), gradient: None };
        match self.given[chunk].replace(given) {
            Some(before) => {
                for storage in [Some(before.input), before.gradient].into_iter().flatten() {
                    self.eager.release(storage);
                }
            }
            None => self.kept[chunk].into_iter().flatten().for_each(|buffer| self.eager.program.free(buffer)),
        }
    }

    /// At the end of a step its chunks still name what they were given last.
    fn keep(&mut self) {
        for chunk in 0..self.chunks.len() {
            let (Some(given), Some([input, gradient])) = (self.given[chunk].take(), self.kept[chunk]) else { continue };
            self.eager.hand_over(given.input, input);
            match given.gradient {
                Some(made) => self.eager.hand_over(made, gradient),
                None => unreachable!("every input gets a gradient before the step ends"),
            }
        }
    }

    /// A variable takes another value.
    pub(super) fn name(&mut self, which: usize, storage: Storage) {
        if let Some(before) = self.named[which].replace(storage) {
            self.eager.release(before);
        }
    }

    /// Before the backward of a chunk's last micro-batch: its gradients are reduced beside it, on the first pipeline rank.
    /// The others start when theirs are done, to begin together (`--no-align-grad-reduce` unset).
    fn overlap_reduction(&mut self, chunk: usize) {
        let last = self.counts.backwards + 1 == self.counts.total;
        let alone = self.job.pipeline.virtual_stages == 1 && self.rank == 0;
        for data in &self.data {
            let mut data = data.borrow_mut();
            let reduces = (data.overlaps_reduce() && last && alone).then_some(chunk);
            data.reduces(reduces);
        }
    }

    fn aligns_gather(&self) -> bool {
        self.job.optimizer.align_gather && self.job.pipeline.virtual_stages > 1
    }

    /// Before a forward: the chunk after the one whose first micro-batch the last pipeline rank has now, as counted from
    /// here, starts its gathering (`forward_step_helper_preprocess`).
    fn align_gather(&mut self) {
        let ahead = self.counts.forwards + self.rank as usize;
        let round = self.job.mesh.pp as usize;
        if self.aligns_gather() && ahead.is_multiple_of(round) && ahead / round + 1 < self.chunks.len() && ahead > 0 {
            self.prefetch(ahead / round + 1);
        }
    }

    /// A chunk starts its gathering.
    fn prefetch(&mut self, chunk: usize) {
        for data in &self.data {
            data.borrow_mut().prefetch(&mut self.eager.program, chunk);
        }
    }

    /// With virtual stages: after a backward, the chunk whose last micro-batch the first rank has just ended, as counted
    /// from here, starts its reduction.
    fn start_reductions(&mut self) {
        self.data.iter().for_each(|data| data.borrow_mut().reduces(None));
        if !self.job.gradients.overlap_reduce || self.job.pipeline.virtual_stages == 1 {
            return;
        }
        let Some(done) = self.counts.backwards.checked_sub(1 + self.rank as usize) else { return };
        let each = self.counts.total / self.chunks.len();
        // The chunk of a step, in rounds of as many micro-batches as there are ranks; the last round of each chunk ends it.
        let round = self.job.mesh.pp as usize;
        let (in_round, chunks) = (done % (round * self.chunks.len()), self.chunks.len());
        let chunk = chunks - 1 - in_round / round;
        let microbatch = done / (round * chunks) * round + in_round % round;
        if microbatch + 1 == each {
            self.data.iter().for_each(|data| data.borrow_mut().start(&mut self.eager.program, chunk));
            self.started[chunk] = true;
        }
    }

    fn phase_end(&mut self, name: &str) {
        self.eager.program.mark(Mark::PhaseEnd(name.to_owned()));
    }
}
