//! The training loop around a model under FSDP: setup, forward, loss, backward, clipping, optimizer, zeroing.
//!
//! The loop is the plain PyTorch one: `loss = ce_loss(model(x), y); loss.backward(); optimizer.step();
//! optimizer.zero_grad(set_to_none=True)`. Python's references are followed: a hidden state lives until the next one has
//! taken its name, logits until the loss has been computed.

mod besides;
mod blocks;
mod body;
mod captured;
mod communicators;
mod data_parallel;
mod documents;
mod expert_parallel;
mod framework;
mod frozen;
mod halves;
mod initial;
mod mixers;
mod models;
mod part;
mod passes;
pub mod pipeline;
pub(super) mod plan;
mod reducer;
mod reference;
mod setup;
mod step;
mod training;
mod units;
mod wrapped;

pub use crate::plan::torch::{Autocast, Checkpoint, Initialisation, KeepLogits, Loop, TorchPlan};

use super::fsdp::{self, Version};
use crate::program::builder::Section;
use crate::program::{Budget, Program};
use part::Part;
use training::Training;

/// The program of one rank; all ranks run the same, but in a pipeline.
pub fn compile(job: &TorchPlan) -> Program {
    compile_within(job, &Budget::unlimited())
}

/// Parameters that are trained, of the whole model.
pub fn trained_parameters(job: &TorchPlan) -> u64 {
    let layout = plan::layout(job, &plan::graphs(job), &[Part::whole(job)]);
    layout.params.iter().filter(|param| param.trained).map(fsdp::ShardedParam::elements).sum()
}

fn compile_within(job: &TorchPlan, budget: &Budget) -> Program {
    let of_reference = reference::plan(job);
    let mut training = Training::new((job, budget), vec![Part::whole(job)]);
    training.refer_to(of_reference.as_ref());
    training.setup();
    let sections: &[Section] = match job.fsdp.version {
        Version::Two if job.first_step_differs() => &[Section::First, Section::Step],
        // Every step is alike, but that the first makes the optimizer's state.
        Version::Two => &[Section::Step],
        // The first step learns the order of execution, and leaves events to the second.
        Version::One(_) | Version::Unsharded => &[Section::First, Section::Step],
    };
    for &section in sections {
        training.run.eager.program.section(section);
        training.step(sections.len() == 1 || section == Section::First);
        if section == Section::First {
            training.data_parallel_first_step_ended();
        }
    }
    if let Some(graphs) = training.graphs_of_passes {
        training.run.eager.program.take_graphs_memory_in_first(graphs.captured_at);
    }
    training.run.eager.program.finish()
}
