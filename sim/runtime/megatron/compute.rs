//! A pipeline rank's computations: forward and backward of a micro-batch on a stage, and the gatherings and reductions that
//! start beside them (`core/pipeline_parallel/schedules.py`, 0.16.1).

use super::chunk::ChunkFrame;
use super::data::read_back;
use super::state::{Key, Open, Rank, Received};
use crate::plan::megatron::Engine;
use crate::program::{Category, Dispatch, Pass, ScopeId};
use crate::runtime::eager::framework::{Megatron, WeightGradients};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::schedule::{Action, Kind};

/// What a computation has been given, and the scope it came from.
pub(super) struct Begun {
    pub(super) before: ScopeId,
    pub(super) tensor: Option<Storage>,
}

impl Rank<'_> {
    fn framework(&mut self) -> &mut Megatron {
        self.eager.framework.megatron_mut().expect("a rank of a pipeline runs under Megatron")
    }

    pub(super) fn compute(&mut self, action: Action) {
        let key = (action.stage, action.microbatch);
        match action.kind {
            Kind::Forward => self.forward(key),
            Kind::Backward => self.backward(key),
            Kind::Input => {
                self.framework().weights = WeightGradients::Deferred(vec![]);
                self.backward(key);
                let list = self.framework().weights.take_deferred();
                self.deferred.insert(key, list);
            }
            Kind::Weight => self.weight(key),
            _ => unreachable!("of the actions these compute"),
        }
        self.counts_of(action.kind == Kind::Forward);
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
        // The schedule repeats itself from the second forward of the steady state on: the first has no backward before it.
        let round = self.job.split.round() as usize * self.job.split.pipeline.virtual_stages as usize;
        let second = self.counts.steady().and_then(|steady| steady.checked_sub(1));
        if second.is_some_and(|since| since.is_multiple_of(round)) {
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
        self.framework().fp8.fresh_weights = key.1 == 0;
        Begun { before, tensor: input }
    }

    /// What becomes of what a forward has made.
    pub(super) fn end_forward(&mut self, key: Key, (mut frame, output): (ChunkFrame, Storage), held: Option<Storage>) {
        self.framework().fp8.fresh_weights = false;
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

    /// Before the backward of a chunk's last micro-batch: its gradients are reduced beside it, on the first pipeline rank.
    /// The others start when theirs are done, to begin together (`--no-align-grad-reduce` unset).
    fn overlap_reduction(&mut self, chunk: usize) {
        let last = self.counts.backwards + 1 == self.counts.total;
        let alone = self.job.split.pipeline.virtual_stages == 1 && self.rank == 0;
        for data in &self.data {
            let mut data = data.borrow_mut();
            let reduces = (data.overlaps_reduce() && last && alone).then_some(chunk);
            data.reduces(reduces);
        }
    }

    pub(super) fn aligns_gather(&self) -> bool {
        self.job.optimizer.align_gather && self.job.split.pipeline.virtual_stages > 1
    }

    /// Before a forward: the chunk after the one whose first micro-batch the last pipeline rank has now, as counted from
    /// here, starts its gathering (`forward_step_helper_preprocess`).
    fn align_gather(&mut self) {
        let ahead = self.counts.forwards + self.rank as usize;
        let round = self.job.split.mesh.pp as usize;
        if self.aligns_gather() && ahead.is_multiple_of(round) && ahead / round + 1 < self.chunks.len() && ahead > 0 {
            self.prefetch(ahead / round + 1);
        }
    }

    /// A chunk starts its gathering.
    pub(super) fn prefetch(&mut self, chunk: usize) {
        for data in &self.data {
            data.borrow_mut().prefetch(&mut self.eager.program, chunk);
        }
    }

    /// With virtual stages: after a backward, the chunk whose last micro-batch the first rank has just ended, as counted
    /// from here, starts its reduction.
    fn start_reductions(&mut self) {
        self.data.iter().for_each(|data| data.borrow_mut().reduces(None));
        if !self.job.gradients.overlap_reduce || self.job.split.pipeline.virtual_stages == 1 {
            return;
        }
        let Some(done) = self.counts.backwards.checked_sub(1 + self.rank as usize) else { return };
        let each = self.counts.total / self.chunks.len();
        // The chunk of a step, in rounds of as many micro-batches as there are ranks; the last round of each chunk ends it.
        let round = self.job.split.mesh.pp as usize;
        let (in_round, chunks) = (done % (round * self.chunks.len()), self.chunks.len());
        let chunk = chunks - 1 - in_round / round;
        let microbatch = done / (round * chunks) * round + in_round % round;
        if microbatch + 1 == each {
            self.data.iter().for_each(|data| data.borrow_mut().start(&mut self.eager.program, chunk));
            self.started[chunk] = true;
        }
    }
}
