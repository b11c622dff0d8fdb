//! A pipeline rank's step: its list of actions in order, then the optimizer.

use super::messages::{Key, Received};
use super::rank::{Open, Rank};
use crate::plan::torch::Pipeline;
use crate::plan::torch::TorchPlan;
use crate::program::builder::Section;
use crate::program::{Budget, Category, Dispatch, MemoryKind, Program};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::schedule::{Action, Kind, Lists, Schedule};

/// The program of a rank.
pub(super) fn program(
    (job, pipeline, budget): (&TorchPlan, &Pipeline, &Budget),
    schedule: &Schedule,
    lists: &Lists,
    rank: u32,
) -> Program {
    let mut run = Rank::new((job, pipeline, budget), schedule, rank);
    run.training.run.eager.program.section(Section::Step);
    run.step(lists.portions(rank as usize));
    run.training.run.eager.program.finish()
}

impl Rank<'_> {
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

    fn portion(&mut self, portion: &[Action]) {
        if portion.iter().any(|action| action.kind.is_message()) {
            return self.exchange(portion);
        }
        for action in portion {
            let (key, stage) = ((action.stage, action.microbatch), usize::from(action.stage));
            match action.kind {
                Kind::Forward => self.forward(key),
                Kind::Backward => self.backward(key),
                Kind::Input => self.input_half(key),
                Kind::Weight => self.weight_half(key),
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

    /// A tensor of another stage, once it is there.
    fn arrived(&mut self, received: Option<Received>) -> Option<Storage> {
        let Received { storage, event } = received?;
        if let Some(event) = event {
            self.training.run.eager.program.wait(COMPUTE, event);
        }
        Some(storage)
    }

    fn forward(&mut self, key: Key) {
        let stage = usize::from(key.0);
        self.compute_on(stage);
        let received = self.inputs.remove(&key);
        let input = self.arrived(received);
        let (mut frames, output) = self.training.forward(input);
        let logits = self.training.hold_logits(&frames);
        // The stage holds its result until its backward.
        let held = output.filter(|_| self.walks_list()).map(|output| self.training.run.eager.retain(output));
        if let Some(storage) = output {
            if self.stages.contains(&(stage + 1)) {
                self.inputs.insert((key.0 + 1, key.1), Received { storage, event: None });
            } else {
                self.outputs.insert(key, storage);
            }
        }
        self.forward_ended();
        if self.is_last(stage) {
            self.training.loss(&mut frames, 0);
            self.losses.extend(frames.loss.take());
        }
        self.open.insert(key, Open { frames, input, output: held, logits, gradient: None, made: None });
    }

    /// A stage turns to a micro-batch's backward, or its first half: what the forward left, and the gradient of its result.
    fn turn_back(&mut self, key: Key) -> Open {
        self.compute_on(usize::from(key.0));
        self.backward_begins(usize::from(key.0));
        let received = self.gradients.remove(&key);
        let gradient = self.arrived(received);
        let open = self.open.remove(&key).expect("a backward follows its forward");
        Open { gradient, ..open }
    }

    /// Gradients are added up whole, in the type that they will be reduced in, and parameters stay.
    fn accumulates(&mut self) {
        let run = &mut self.training.run;
        (run.reduce_gradients, run.keeps_gathered) = (false, true);
        run.eager.leaves.dtype = run.stored_gradient();
    }

    fn backward(&mut self, key: Key) {
        let open = self.turn_back(key);
        self.whole_backward(key, open);
        self.backward_ended();
    }

    fn whole_backward(&mut self, key: Key, mut open: Open) {
        self.accumulates();
        let given = open.gradient.map(|gradient| self.training.run.eager.retain(gradient));
        let made = self.training.backward(&mut open.frames, given, false);
        if self.is_last(usize::from(key.0)) {
            // The graph of the loss ends in the input, and the loop still names the loss when the step has ended.
            self.training.of_loss.extend(open.input.take());
        }
        let Open { logits, output, input, gradient, .. } = open;
        for storage in logits.into_iter().chain(output).chain(input).chain(gradient) {
            self.training.run.eager.release(storage);
        }
        self.hand_back(key, made);
    }

    /// The gradient of a stage's input is to be sent, or given to the rank's stage before.
    fn hand_back(&mut self, key: Key, made: Option<Storage>) {
        let Some(storage) = made else { return };
        if self.stages.iter().any(|&own| own + 1 == usize::from(key.0)) {
            self.gradients.insert((key.0 - 1, key.1), Received { storage, event: None });
        } else {
            self.input_gradients.insert(key, storage);
        }
    }

    /// The first half of a backward. The first stage, whose input has no gradient, leaves all of it for the second.
    fn input_half(&mut self, key: Key) {
        let mut open = self.turn_back(key);
        if key.0 > 0 {
            self.accumulates();
            let given = open.gradient.map(|gradient| self.training.run.eager.retain(gradient));
            let made = self.training.backward_input(&mut open.frames, given);
            for storage in open.logits.drain(..) {
                self.training.run.eager.release(storage);
            }
            // The input's `.grad` names it, too.
            open.made = made.map(|made| self.training.run.eager.retain(made));
            self.hand_back(key, made);
        }
        self.open.insert(key, open);
    }

    /// The second half.
    fn weight_half(&mut self, key: Key) {
        self.compute_on(usize::from(key.0));
        let open = self.open.remove(&key).expect("a backward follows its forward");
        if key.0 == 0 {
            return self.whole_backward(key, open);
        }
        self.accumulates();
        let Open { frames, input, output, gradient, made, .. } = open;
        self.training.backward_weights(frames);
        for storage in [input, made, gradient, output].into_iter().flatten() {
            self.training.run.eager.release(storage);
        }
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
