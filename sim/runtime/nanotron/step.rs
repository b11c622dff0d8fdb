//! A pipeline rank's training step in host order (`parallel/pipeline_parallel/engine.py`, `block.py`, `functional.py`).
//!
//! A stage asks for what it needs inside forward and backward, and only then lets others have what it has made: the hidden
//! state of a forward goes out when the backward after it asks for its gradient, a gradient when the next forward asks for
//! its hidden state. In the warm-up, and after the last forward, each goes at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::blocks::modules;
use super::buckets::{Buckets, Hooks, add_to_fp32};
use super::messages::{Messages, Peer};
use super::update::{Groups, Update};
use crate::plan::nanotron::NanotronPlan;
use crate::program::builder::Section;
use crate::program::{Budget, Builder, Category, Dispatch, Mark, Pass, Program, StreamId};
use crate::runtime::eager::framework::Nanotron;
use crate::runtime::eager::main_gradients::ParamHooks;
use crate::runtime::eager::{COMPUTE, Eager, FrameworkState, Storage, TensorGroup};
use crate::runtime::megatron::{Around, Chunk, ChunkFrame, Ends, LossReport};
use crate::runtime::optimizer::Owned;
use crate::units::Bytes;

/// The streams: compute, tensor-parallel collectives, messages with the stage before and with that behind, data-parallel
/// collectives.
const STREAMS: [&str; 5] = ["compute", "tensor-parallel", "pipeline", "pipeline (2)", "data-parallel"];
const TENSOR: StreamId = StreamId(1);
const PAIRS: [StreamId; 2] = [StreamId(2), StreamId(3)];
const DATA: StreamId = StreamId(4);

/// The program of a pipeline rank.
pub(super) fn program((job, budget): (&NanotronPlan, &Budget), rank: u32) -> Program {
    let mut run = Rank::new((job, budget), rank);
    run.setup();
    run.eager.program.section(Section::Step);
    run.step();
    run.eager.program.finish()
}

struct Rank<'j> {
    job: &'j NanotronPlan,
    rank: u32,
    first: bool,
    last: bool,
    chunk: Chunk,
    eager: Eager,
    messages: Messages,
    buckets: Option<Rc<RefCell<Buckets>>>,
    update: Update,
    /// Micro-batches between forward and backward, the oldest first.
    open: VecDeque<ChunkFrame>,
    /// Hidden states and gradients that nobody has been given yet.
    outputs: VecDeque<Storage>,
    gradients: VecDeque<Storage>,
    /// Backwards so far.
    backwards: u32,
    /// Losses of the step.
    losses: Vec<Storage>,
}

impl<'j> Rank<'j> {
    fn new((job, budget): (&'j NanotronPlan, &Budget), rank: u32) -> Rank<'j> {
        let split = &job.split;
        let mesh = split.mesh;
        let mut program = Builder::within(budget, mesh.ranks(), &STREAMS);
        let [tensor, data, pipeline, embedding, world] =
            [mesh.tensor(), mesh.data(), mesh.pipeline(), mesh.embedding(), mesh.world()]
                .map(|group| program.add_group(group));
        let (first, last) = (rank == 0, rank + 1 == mesh.pp);
        let before: u64 = split.pipeline.layers[..rank as usize].iter().sum();
        let own = before..before + split.pipeline.layers[rank as usize];
        let chunk = Chunk::of(&modules(job.gathers_again), (split, Around::NOTHING), Ends { first, last }, own, 0);
        let params: Vec<Owned> = chunk.params().iter().map(|param| Owned::whole(param.shape, param.role)).collect();
        let sizes: Vec<u64> = params.iter().map(Owned::elements).collect();
        let partial = chunk.params().iter().filter(|param| param.name.contains("norm") && mesh.tp > 1);
        let tied = chunk.params().iter().filter(|param| param.word_embedding && split.model.tied_head && mesh.pp > 1);
        let update = Update {
            dtype: split.dtype,
            total: sizes.iter().sum(),
            partial: partial.map(|param| param.elements).sum(),
            shared: tied.map(|param| param.elements).sum(),
            params,
            replicas: u64::from(mesh.dp),
            alone: mesh.ranks() == 1,
            zero: job.zero,
            last,
            groups: Groups { tensor, data, embedding, world, stream: DATA },
        };
        let params = sizes.len();
        let buckets = job.is_ddp().then(|| {
            let (dtype, most) = (split.dtype, job.bucket);
            let buckets = Buckets {
                sizes,
                dtype,
                most,
                group: data,
                stream: DATA,
                reducing: false,
                waiting: vec![],
                bytes: 0,
                closed: 0,
            };
            Rc::new(RefCell::new(buckets))
        });
        let hooks = buckets.as_ref().map(|buckets| Box::new(Hooks(Rc::clone(buckets))) as Box<dyn ParamHooks>);
        let group = TensorGroup { group: tensor, ranks: u64::from(mesh.tp), stream: TENSOR };
        let nanotron = Nanotron { tensor: (mesh.tp > 1).then_some(group), hooks };
        let eager = Eager::new(program, split.eager(), params, FrameworkState::Nanotron(nanotron));
        Rank {
            job,
            rank,
            first,
            last,
            chunk,
            eager,
            messages: Messages::new(job, (&mesh.pipeline(), pipeline), PAIRS),
            buckets,
            update,
            open: VecDeque::new(),
            outputs: VecDeque::new(),
            gradients: VecDeque::new(),
            backwards: 0,
            losses: vec![],
        }
    }

    fn setup(&mut self) {
        self.update.setup(&mut self.eager.program, self.job);
        // `MemoryBuffer`: gathered inputs, and gathered gradients.
        let split = &self.job.split;
        if split.mesh.tp > 1 {
            let bytes = Bytes(split.batch * split.seq * split.model.width * split.dtype.bytes());
            for name in ["allgather2", "allgather"].into_iter().take(1 + usize::from(self.job.gathers_again)) {
                self.eager.program.alloc(bytes, COMPUTE, Category::Buffer, name);
            }
        }
    }

    fn step(&mut self) {
        self.eager.program.host(Dispatch::StepOverhead, 1);
        let micro_batches = self.job.split.micro_batches;
        let all_first = self.job.split.pipeline.schedule.name == "AFAB";
        let warmup =
            if all_first { micro_batches } else { (self.job.split.mesh.pp - self.rank - 1).min(micro_batches) };
        for _ in 0..warmup {
            self.forward();
            self.send_outputs();
        }
        for _ in warmup..micro_batches {
            self.forward();
            self.backward();
        }
        self.send_gradients();
        for _ in 0..warmup {
            self.backward();
            self.send_gradients();
        }
        if let Some(buckets) = &self.buckets {
            buckets.borrow_mut().finish(&mut self.eager.program);
        }
        self.end("forward-backward");
        self.update.run(&mut self.eager.program);
        for storage in std::mem::take(&mut self.losses) {
            self.eager.release(storage);
        }
        self.end("optimizer");
    }

    fn forward(&mut self) {
        self.eager.category = Category::Activation;
        let input = (!self.first).then(|| {
            let bytes = self.job.split.dtype.bytes() * self.part();
            let input = self.eager.storage(bytes, "recv activation");
            let program = &mut self.eager.program;
            self.messages.receive(program, Peer::Previous, self.messages.hidden);
            self.messages.receive(program, Peer::Previous, self.messages.mask);
            self.send_gradients();
            input
        });
        self.eager.program.set_pass(Pass::Forward);
        let (mut frame, output) = self.chunk.forward(&mut self.eager, input);
        if self.last {
            let report = frame.take_report();
            let numbers = report.map(|LossReport { tokens, report }| [tokens, report]);
            self.losses.extend(numbers.into_iter().flatten().chain([output]));
        } else {
            self.outputs.push_back(output);
        }
        self.open.push_back(frame);
    }

    fn backward(&mut self) {
        self.send_outputs();
        let gradient = (!self.last).then(|| {
            let bytes = self.job.split.dtype.bytes() * self.part();
            let gradient = self.eager.storage_as(bytes, Category::BackwardTemporary, "recv gradient");
            self.messages.receive(&mut self.eager.program, Peer::Next, self.messages.hidden);
            gradient
        });
        self.backwards += 1;
        let final_one = self.backwards == self.job.split.micro_batches;
        let reducing = self.buckets.as_ref().filter(|_| final_one);
        if let Some(buckets) = reducing {
            buckets.borrow_mut().reducing = true;
        }
        self.eager.program.set_pass(Pass::Backward);
        let frame = self.open.pop_front().expect("a backward follows its forward");
        let made = self.chunk.backward(&mut self.eager, frame, gradient);
        self.accumulate(final_one && self.job.is_ddp());
        self.gradients.extend(made);
    }

    /// Gradients go to the buffer in fp32, where DDP's hook has not put them there, and are gone.
    fn accumulate(&mut self, reduced: bool) {
        let dtype = self.job.split.dtype;
        for (param, elements) in self.update.params.iter().map(Owned::elements).enumerate() {
            let Some((gradient, _)) = self.eager.take_leaf(param) else { continue };
            if !reduced {
                add_to_fp32(&mut self.eager.program, elements, dtype, Dispatch::EagerForward);
            }
            self.eager.release(gradient);
        }
    }

    /// Elements of a hidden state on this rank.
    fn part(&self) -> u64 {
        let split = &self.job.split;
        split.batch * split.seq / u64::from(split.mesh.tp) * split.model.width
    }

    fn send_outputs(&mut self) {
        while let Some(output) = self.outputs.pop_front() {
            self.messages.send(&mut self.eager.program, Peer::Next, self.messages.hidden);
            self.messages.send(&mut self.eager.program, Peer::Next, self.messages.mask);
            self.eager.release(output);
        }
    }

    fn send_gradients(&mut self) {
        while let Some(gradient) = self.gradients.pop_front() {
            self.messages.send(&mut self.eager.program, Peer::Previous, self.messages.hidden);
            self.eager.release(gradient);
        }
    }

    fn end(&mut self, phase: &str) {
        self.eager.program.mark(Mark::PhaseEnd(phase.to_owned()));
    }
}
