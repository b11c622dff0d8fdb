//! A training step in host order (`train.py`, `internlm/core/no_pipeline_scheduler.py`, v0.1.0). Timers drain the device
//! where they start and stop. The emptying of the allocator's cache every fifty steps is left out.

use std::cell::RefCell;
use std::rc::Rc;

use super::blocks::MODULES;
use super::owners::Owners;
use super::zero::{Buckets, Groups, Hooks, STREAMS, TENSOR, Zero, drain, read_back};
use crate::plan::internevo::InternEvoPlan;
use crate::program::builder::Section;
use crate::program::{Budget, Builder, Category, Dispatch, Mark, Pass, Program};
use crate::runtime::eager::framework::InternEvo;
use crate::runtime::eager::{COMPUTE, Eager, FrameworkState, Storage, TensorGroup};
use crate::runtime::megatron::{Around, Chunk, Ends, LossReport};
use crate::units::Bytes;

/// The program of the rank that owns most.
pub(super) fn program(job: &InternEvoPlan, budget: &Budget) -> Program {
    let split = &job.split;
    let mut program = Builder::within(budget, split.mesh.ranks(), &STREAMS);
    let groups = Groups::new(&mut program, job);
    let chunk = Chunk::of(&MODULES, (split, Around::NOTHING), Ends::BOTH, 0..split.model.layers.count(), 0);
    let sizes: Vec<u64> = chunk.params().iter().map(|param| param.elements).collect();
    let owners = Owners::of(&sizes, job.zero1);
    let own = owners.params[owners.largest()].clone();
    let zero = Zero::new(job, &sizes, &owners, groups);
    let params = sizes.len();
    let buckets = Rc::new(RefCell::new(Buckets::new(job, sizes, groups)));
    let ranks = split.mesh.tp.into();
    let tensor = (ranks > 1).then_some(TensorGroup { group: groups.tensor, ranks, stream: TENSOR });
    let internevo = InternEvo { tensor, hooks: Box::new(Hooks(Rc::clone(&buckets))) };
    let mut eager = Eager::new(program, split.eager(), params, FrameworkState::InternEvo(internevo));
    zero.setup(&mut eager.program);
    let table = split.seq * split.model.head_dim() / 2 * split.dtype.bytes();
    for _ in 0..2 * split.model.layers.count() {
        eager.program.alloc(Bytes(table), COMPUTE, Category::Buffer, "rotary tables");
    }
    eager.program.section(Section::Step);
    let mut run = Run { job, chunk, eager, buckets, held: None };
    run.micro_batches();
    run.reduce_rest(&own);
    zero.step(&mut run.eager.program);
    for param in own {
        run.let_go(param);
    }
    run.end("optimizer");
    run.eager.program.finish()
}

struct Run<'j> {
    job: &'j InternEvoPlan,
    chunk: Chunk,
    eager: Eager,
    buckets: Rc<RefCell<Buckets>>,
    /// The last micro-batch's loss and logits, until the next one's take their names; and the sum of losses.
    held: Option<[Storage; 3]>,
}

impl Run<'_> {
    fn micro_batches(&mut self) {
        let program = &mut self.eager.program;
        program.host(Dispatch::StepOverhead, 1);
        drain(program);
        let last = self.job.split.micro_batches - 1;
        for micro_batch in 0..=last {
            self.buckets.borrow_mut().reducing = micro_batch == last;
            self.micro_batch();
        }
        for storage in self.held.take().into_iter().flatten() {
            self.eager.release(storage);
        }
        drain(&mut self.eager.program);
        self.end("forward-backward");
    }

    fn micro_batch(&mut self) {
        let eager = &mut self.eager;
        eager.program.set_pass(Pass::Forward);
        eager.category = Category::Activation;
        // The longest sequence (`max_seqlen`).
        read_back(&mut eager.program);
        let (mut frame, loss) = self.chunk.forward(eager, None);
        let report = frame.take_report();
        eager.program.set_pass(Pass::Backward);
        self.chunk.backward(eager, frame, None);
        let held = report.map(|LossReport { tokens, report }| [loss, tokens, report]);
        for storage in std::mem::replace(&mut self.held, held).into_iter().flatten() {
            eager.release(storage);
        }
    }

    /// What is left in the last bucket; then gradients of other owners go (`_sync_grad`).
    fn reduce_rest(&mut self, own: &[usize]) {
        self.buckets.borrow_mut().flush(&mut self.eager.program);
        drain(&mut self.eager.program);
        for param in 0..self.chunk.params().len() {
            if !own.contains(&param) {
                self.let_go(param);
            }
        }
    }

    fn let_go(&mut self, param: usize) {
        if let Some((gradient, _)) = self.eager.take_leaf(param) {
            self.eager.release(gradient);
        }
    }

    fn end(&mut self, phase: &str) {
        self.eager.program.mark(Mark::PhaseEnd(phase.to_owned()));
    }
}
