//! A pipeline rank: its stages, and its micro-batches under way.

use std::collections::BTreeMap;

use super::messages::{Key, Messages, Names, Received};
use crate::plan::torch::Pipeline;
use crate::plan::torch::TorchPlan;
use crate::program::Budget;
use crate::runtime::eager::Storage;
use crate::runtime::train::passes::Frames;
use crate::runtime::train::training::Training;
use crate::schedule::{Batching, Schedule};

/// A micro-batch between its forward and the end of its backward.
pub(super) struct Open {
    pub(super) frames: Frames,
    pub(super) input: Option<Storage>,
    /// Its result, where a list is walked.
    pub(super) output: Option<Storage>,
    pub(super) logits: Vec<Storage>,
    /// Between the halves of a backward: the gradients of its result and of its input.
    pub(super) gradient: Option<Storage>,
    pub(super) made: Option<Storage>,
}

/// A pipeline rank, writing its program.
pub(super) struct Rank<'j> {
    pub(super) training: Training<'j>,
    pub(super) schedule: &'j Schedule,
    /// The stages of its parts.
    pub(super) stages: Vec<usize>,
    pub(super) messages: Messages,
    pub(super) names: Names,
    pub(super) inputs: BTreeMap<Key, Received>,
    pub(super) gradients: BTreeMap<Key, Received>,
    pub(super) outputs: BTreeMap<Key, Storage>,
    pub(super) input_gradients: BTreeMap<Key, Storage>,
    pub(super) open: BTreeMap<Key, Open>,
    pub(super) losses: Vec<Storage>,
    /// Stages whose gathers nobody has waited for yet, and those that a reduction has left sharded.
    pub(super) gathering: Vec<usize>,
    pub(super) reduced: Vec<usize>,
}

impl<'j> Rank<'j> {
    /// A rank that has set up its stages.
    pub(super) fn new(
        (job, pipeline, budget): (&'j TorchPlan, &'j Pipeline, &Budget),
        schedule: &'j Schedule,
        rank: u32,
    ) -> Self {
        let stages = pipeline.stages(rank);
        let mut training = Training::new((job, budget), stages.iter().map(|&stage| pipeline.part(stage)).collect());
        training.setup();
        let messages = Messages::new(&mut training, pipeline);
        training.pipeline_group = Some(messages.group());
        Rank {
            training,
            schedule,
            stages,
            messages,
            names: Names::default(),
            inputs: BTreeMap::new(),
            gradients: BTreeMap::new(),
            outputs: BTreeMap::new(),
            input_gradients: BTreeMap::new(),
            open: BTreeMap::new(),
            losses: vec![],
            gathering: vec![],
            reduced: vec![],
        }
    }

    /// Whether gathers and reductions stand in the list (`_PipelineScheduleRuntime`).
    pub(super) fn walks_list(&self) -> bool {
        self.schedule.batching == Batching::Eager
    }
}
