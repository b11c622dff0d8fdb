//! A training step as the compiler orders it: embedding, a loop over blocks, the loss, the loop back, the optimizer.

mod accumulate;
mod attention;
mod backward;
mod forward;
mod gpu;
mod head;
mod lookup;
mod moves;
mod optimizer;
mod pipeline;
mod router;
mod shards;
mod state;
mod turns;
mod weights;

use std::collections::BTreeMap;

use super::block::Kind;
use super::room::Room;
use super::tape::{CORE, STAGES, UNITS, Value};
use crate::plan::xla::{Policy, XlaPlan};
use crate::program::builder::Section;
use crate::program::{Budget, Builder, Category, Discipline, Dispatch, Pass, Program};
use crate::runtime::optimizer::param::elements;
use crate::units::Bytes;
use state::{FULL, Groups, Scopes, Step};

/// The region of the last norm, the head and the loss.
pub(super) const HEAD: &str = "decoder_norm, logits_dense";

/// The program of every chip.
pub(super) fn program((job, budget): (&XlaPlan, &Budget), room: Room) -> Program {
    let units = if job.pipeline.is_some() { &UNITS[..] } else { &UNITS[..STAGES.0 as usize] };
    let mut program = Builder::within(budget, job.mesh.ranks(), units);
    program.memory(Discipline::Static);
    let groups = Groups {
        fsdp: program.add_group(job.mesh.fsdp_group()),
        expert_fsdp: program.add_group(job.mesh.expert_fsdp_group()),
        expert: program.add_group(job.mesh.expert_group()),
        tensor: program.add_group(job.mesh.tensor_group()),
        context: program.add_group(job.mesh.context_group()),
        data: program.add_group(job.mesh.data_group()),
        data_fsdp: program.add_group(job.mesh.data_fsdp_group()),
        stage: program.add_group(job.mesh.stage_group()),
        stage_data: program.add_group(job.mesh.stage_data_group()),
        batch: program.add_group(job.mesh.batch_group()),
    };
    let scopes = Scopes {
        embedding: program.add_scope("token_embedder".to_owned()),
        layers: layers(job).map(|name| program.add_scope(name)).collect(),
        head: program.add_scope(HEAD.to_owned()),
        optimizer: program.add_scope("optimizer".to_owned()),
    };
    let micro = job.micro_batch();
    let mut step = Step::new((job, micro.as_ref()), room, groups, scopes);
    step.tape.within(budget);
    step.arguments(&mut program);
    step.run();
    program.section(Section::Step);
    if job.torch.is_some() {
        trace(&step, &mut program);
    }
    super::emit::emit(&step.tape, &mut program);
    for _ in 0..job.host_syncs {
        program.wait_for_host(CORE);
        program.host(Dispatch::Synchronize, 1);
    }
    program.finish()
}

/// PyTorch/XLA runs the Python of every step, which writes its operators down, and hands the graph over. The host is through with it
/// before the chip begins, and begins the next one while the chip is busy.
fn trace(step: &Step<'_>, program: &mut Builder) {
    let job = step.job;
    let blocks = job.model.layers.count() as u32;
    let again = if job.remat == Policy::None { 0 } else { blocks };
    let tensors = |variant: &usize| {
        let block = &step.variants[*variant].block;
        block.weights.len() + block.ops.iter().filter(|op| op.kind == Kind::Norm).count()
    };
    // The embedding, the last norm and the head besides.
    let around = if job.model.tied_head { 2 } else { 3 };
    let parameters = step.variant_of.iter().map(tensors).sum::<usize>() as u32 + around;
    for _ in 0..job.accumulation {
        program.host(Dispatch::LazyForward, blocks + again);
        program.host(Dispatch::LazyBackward, blocks);
        program.host(Dispatch::LazySync, blocks);
    }
    program.host(Dispatch::LazyParameter, parameters);
}

/// Regions of blocks: those of a stage, in a pipeline, then those that are in none.
fn layers(job: &XlaPlan) -> impl Iterator<Item = String> {
    let (staged, rest) = job
        .pipeline
        .map_or((0, job.model.layers.count()), |all| (all.layers_per_stage, job.model.layers.count() - all.layers));
    let outside = if staged > 0 { "layers_outside_pipeline" } else { "layers" };
    let named = |name: &'static str, count| (0..count).map(move |layer| format!("{name}.{layer}"));
    named("pipeline_module.layers", staged).chain(named(outside, rest))
}

impl Step<'_> {
    /// Parameters, moments and the batch: what the program is called with, and gives back in place.
    fn arguments(&self, program: &mut Builder) {
        let (params, optimizer) = (self.parameters(), self.job.optimizer());
        program.section(Section::Setup);
        program.alloc(Bytes(self.full() * elements(&params)), CORE, Category::Parameter, "params");
        let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
        for state in params.iter().flat_map(|param| optimizer.states(param, self.full())) {
            *states.entry(state.name).or_default() += state.bytes();
        }
        for (name, bytes) in states {
            program.alloc(Bytes(bytes), CORE, Category::OptimizerState, name);
        }
        if self.job.multi_steps && self.job.accumulation > 1 {
            let (element, name) = match self.job.torch {
                // Whole on each chip: no spec is written on what a graph leaves behind.
                Some(_) => (self.full() * u64::from(self.job.mesh.shards()), "gradients between graphs"),
                None => (FULL, "acc_grads"),
            };
            program.alloc(Bytes(element * elements(&params)), CORE, Category::OptimizerState, name);
        }
        program.alloc(self.job.inputs(), CORE, Category::Buffer, "inputs, targets");
    }

    fn run(&mut self) {
        match (self.job.accumulation, self.job.multi_steps) {
            (1, _) => self.micro_step(),
            // Each micro-batch is a program of its own, which the optimizer's step is part of.
            (parts, true) => {
                for part in 0..parts {
                    self.micro_step();
                    self.add_up();
                    self.accumulated();
                    if part + 1 < parts {
                        // optax has its inner optimizer run, and keeps what it makes in the last alone.
                        if self.job.torch.is_none() {
                            self.optimizer();
                        }
                        self.forget();
                    }
                }
            }
            (parts, false) => {
                self.begin_sums();
                for _ in 0..parts {
                    self.micro_step();
                    self.accumulated();
                }
                self.tables.extend(self.sums.take());
            }
        }
        self.optimizer();
    }

    /// The optimizer's step.
    fn optimizer(&mut self) {
        self.tape.pass = Pass::Optimizer;
        self.update();
        // What only the value of the loss reads.
        self.sum_loss();
        self.tape.phase("opt");
    }

    /// Forward and backward of a micro-batch.
    fn micro_step(&mut self) {
        self.tape.pass = Pass::Forward;
        self.expect_forward(self.outside());
        let input = self.embed();
        let hidden = self.forward(input);
        let gradient = self.loss(hidden);
        self.add_up();
        self.tape.pass = Pass::Backward;
        let gradient = self.backward(gradient);
        self.reduce_head();
        self.add_up();
        self.embed_backward(gradient);
        self.end_backward();
        self.add_up();
        self.tape.phase("bwd");
    }

    /// Runs all blocks.
    fn forward(&mut self, mut input: Value) -> Value {
        self.cast_weights();
        if let Some(pipeline) = self.job.pipeline {
            input = self.pipeline(pipeline, input);
        }
        self.blocks(self.outside(), input)
    }

    /// From the gradient of the last block's result to that of the first one's input.
    fn backward(&mut self, mut gradient: Value) -> Value {
        let outside = self.outside();
        if !outside.is_empty() {
            self.gradients_of(outside.clone());
            self.expect_backward(outside.clone());
            gradient = self.blocks_backward(outside, gradient);
            self.end_loop();
            self.tables.extend(self.gradients.take());
            self.add_up();
        }
        if let Some(pipeline) = self.job.pipeline {
            gradient = self.pipeline_backward(pipeline, gradient);
            self.tables.extend(self.gradients.take());
        }
        gradient
    }
}
