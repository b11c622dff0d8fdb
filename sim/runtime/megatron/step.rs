//! A pipeline rank's training step: the schedule's actions in order, then gradients, optimizer, parameters
//! (`core/pipeline_parallel/schedules.py`, `megatron/training/training.py`, `train_step`, 0.16.1).

use super::counts::Counts;
use super::state::{Rank, Written};
use crate::plan::megatron::{CudaGraphs, MegatronPlan};
use crate::program::builder::Section;
use crate::program::{Budget, Category, Mark, Program};
use crate::runtime::eager::COMPUTE;
use crate::schedule::{Action, Kind, Lists, Schedule};

/// The rank's program. Where it is `stamped`, what micro-batches do alike is run once.
pub(super) fn program(
    (job, budget): (&MegatronPlan, &Budget),
    (schedule, lists): (&Schedule, &Lists),
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

impl Rank<'_> {
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
        let all_first = before == total && self.job.split.pipeline.virtual_stages > 1;
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

    fn phase_end(&mut self, name: &str) {
        self.eager.program.mark(Mark::PhaseEnd(name.to_owned()));
    }
}
