//! A pipeline rank's step: its list of actions in order, then the optimizer.

use std::collections::BTreeMap;

use super::Pipeline;
use super::messages::{Messages, Names};
use crate::program::builder::Section;
use crate::program::{Category, Dispatch, EventId, MemoryKind, Program};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::runtime::train::passes::Frames;
use crate::runtime::train::{Job, Training};
use crate::schedule::{Action, Batching, Kind, Lists, Schedule};

/// What is known of one micro-batch on one stage.
pub(super) type Key = (u16, u32);

/// A tensor from another stage, and when it will be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) storage: Storage,
    pub(super) event: EventId,
}

/// A micro-batch between its forward and its backward.
struct Open {
    frames: Frames,
    input: Option<Storage>,
    logits: Vec<Storage>,
}

/// A pipeline rank, writing its program.
pub(super) struct Rank<'j> {
    pub(super) training: Training<'j>,
    pub(super) schedule: &'j Schedule,
    /// The stages of its parts.
    stages: Vec<usize>,
    pub(super) messages: Messages,
    pub(super) names: Names,
    pub(super) inputs: BTreeMap<Key, Received>,
    pub(super) gradients: BTreeMap<Key, Received>,
    pub(super) outputs: BTreeMap<Key, Storage>,
    pub(super) input_gradients: BTreeMap<Key, Storage>,
    open: BTreeMap<Key, Open>,
    losses: Vec<Storage>,
    /// Stages whose gathers nobody has waited for yet, and those that a reduction has left sharded.
    gathering: Vec<usize>,
    reduced: Vec<usize>,
}

impl<'j> Rank<'j> {
    pub(super) fn program(
        (job, pipeline): (&'j Job, &'j Pipeline),
        schedule: &'j Schedule,
        lists: &Lists,
        rank: u32,
    ) -> Program {
        let stages = pipeline.stages(rank);
        let mut training = Training::new(job, stages.iter().map(|&stage| pipeline.part(stage)).collect());
        training.setup();
        let messages = Messages::new(&mut training, pipeline);
        training.pipeline_group = Some(messages.group());
        let mut run = Rank {
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
        };
        run.training.run.eager.program.section(Section::Step);
        run.step(lists.portions(rank as usize));
        run.training.run.eager.program.finish()
    }

    fn step<'a>(&mut self, list: impl Iterator<Item = &'a [Action]>) {
        self.training.run.eager.program.host(Dispatch::StepOverhead, 1);
        for portion in list {
            self.portion(portion);
        }
        self.wait_for_sends();
        if !self.walks_list() {
            // `perform_reduce_grad`, before the loop's variables go.
            self.reduce(self.stages[0]);
            self.wait_for_reduction(self.stages[0]);
        }
        self.forget_names();
        self.sum_losses();
        self.training.phase_end("forward-backward", 0);
        self.training.update(true);
        self.training.read_back();
    }

    /// Whether gathers and reductions stand in the list (`_PipelineScheduleRuntime`).
    pub(super) fn walks_list(&self) -> bool {
        self.schedule.batching == Batching::Eager
    }

    fn portion(&mut self, portion: &[Action]) {
        if portion.iter().any(|action| action.kind.is_message()) {
            return self.exchange(portion);
        }
        for action in portion {
            let (key, stage) = ((action.stage, action.microbatch), usize::from(action.stage));
            match action.kind {
                Kind::Forward => self.forward(key),
                Kind::Backward => self.backward(key),
                Kind::WaitSendForward | Kind::WaitSendBackward => self.wait_for(*action),
                Kind::Unshard => {
                    self.turn_to(stage);
                    self.training.run.unshard_all();
                    self.gathering.push(stage);
                }
                // A reduction has let go of them.
                Kind::Reshard if self.reduced.contains(&stage) => {}
                Kind::Reshard => {
                    self.turn_to(stage);
                    self.training.run.reshard_all();
                }
                Kind::ReduceGrad => {
                    self.reduce(stage);
                    self.reduced.push(stage);
                }
                Kind::WaitReduceGrad => self.wait_for_reduction(stage),
                other => unreachable!("{} is not of these schedules", other.word()),
            }
        }
    }

    /// Another of the rank's stages goes to work.
    fn turn_to(&mut self, stage: usize) {
        let at = self.stages.iter().position(|&own| own == stage).expect("a rank's list is of its stages");
        self.training.at = at;
        self.training.run.turn_to(at);
    }

    /// The same, once its parameters are there (`_assert_unsharded`).
    fn compute_on(&mut self, stage: usize) {
        self.turn_to(stage);
        if let Some(at) = self.gathering.iter().position(|&gathering| gathering == stage) {
            self.gathering.remove(at);
            self.training.run.wait_for_all();
        }
    }

    fn is_last(&self, stage: usize) -> bool {
        stage + 1 == self.schedule.stages
    }

    fn forward(&mut self, key: Key) {
        let stage = usize::from(key.0);
        self.compute_on(stage);
        let input = self.inputs.remove(&key).map(|received| {
            self.training.run.eager.program.wait(COMPUTE, received.event);
            received.storage
        });
        let (mut frames, output) = self.training.forward(input);
        let logits = self.training.hold_logits(&frames);
        if let Some(output) = output {
            self.outputs.insert(key, output);
        }
        self.forward_ended();
        if self.is_last(stage) {
            self.training.loss(&mut frames);
            self.losses.extend(frames.loss.take());
        }
        self.open.insert(key, Open { frames, input, logits });
    }

    fn backward(&mut self, key: Key) {
        let stage = usize::from(key.0);
        self.compute_on(stage);
        self.backward_begins(stage);
        let gradient = self.gradients.remove(&key).map(|received| {
            self.training.run.eager.program.wait(COMPUTE, received.event);
            received.storage
        });
        // Gradients are added up whole, in the type that they will be reduced in, and parameters stay.
        let run = &mut self.training.run;
        (run.reduce_gradients, run.keeps_gathered) = (false, true);
        run.eager.gradient_dtype = run.stored_gradient();
        let given = gradient.map(|gradient| run.eager.retain(gradient));
        let Open { frames, input, logits } = self.open.remove(&key).expect("a backward follows its forward");
        let made = self.training.backward(frames, given, false);
        for storage in logits {
            self.training.run.eager.release(storage);
        }
        match input {
            // The graph of the loss ends in the input, and the loop still names the loss when the step has ended.
            Some(input) if self.is_last(stage) => self.training.of_loss.push(input),
            Some(input) => self.training.run.eager.release(input),
            None => {}
        }
        if let Some(gradient) = gradient {
            self.training.run.eager.release(gradient);
        }
        if let Some(made) = made {
            self.input_gradients.insert(key, made);
        }
        self.backward_ended();
    }

    /// Reduces a stage's gradients, and lets go of its parameters (`start_gradient_reduction`).
    fn reduce(&mut self, stage: usize) {
        self.turn_to(stage);
        let run = &mut self.training.run;
        run.keeps_gathered = false;
        run.finalize_backward();
    }

    fn wait_for_reduction(&mut self, stage: usize) {
        self.turn_to(stage);
        self.training.run.end_iteration();
    }

    /// The step's loss: `torch.sum(torch.stack(losses))`.
    fn sum_losses(&mut self) {
        let losses = std::mem::take(&mut self.losses);
        if losses.is_empty() {
            return;
        }
        let (eager, bytes) = (&mut self.training.run.eager, 4 * losses.len() as u64);
        let dispatch = eager.settings.forward;
        let stacked = eager.storage_as(bytes, Category::Activation, "aten.stack");
        eager.pointwise("aten.stack", MemoryKind::Copy, bytes, bytes, dispatch);
        let sum = eager.storage_as(4, Category::Activation, "aten.sum");
        eager.pointwise("aten.sum", MemoryKind::Elementwise, bytes, 4, dispatch);
        for storage in losses.into_iter().chain([stacked]) {
            eager.release(storage);
        }
        self.training.of_loss.push(sum);
    }
}
