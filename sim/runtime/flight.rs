//! What the ranks of a job run: one program for each class of identical ranks.

use std::sync::Arc;

use crate::program::{Budget, Program};
use crate::schedule::ScheduleError;

/// Programs of a job. All have the same groups and number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Flight {
    /// One program for each class: for a pipeline, one for each of its ranks.
    pub classes: Vec<Arc<Program>>,
    /// The class of each rank, an index into `classes`.
    pub class_of: Vec<u32>,
}

impl Flight {
    /// All ranks run the same.
    pub fn alike(program: Program) -> Flight {
        Flight { class_of: vec![0; program.ranks as usize], classes: vec![Arc::new(program)] }
    }

    /// The programs, one for each class.
    pub fn programs(self) -> Vec<Program> {
        self.classes.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// Instructions of all programs.
    pub fn instructions(&self) -> u64 {
        self.classes.iter().map(|program| program.instructions()).sum()
    }

    /// Instructions of all ranks.
    pub fn instructions_of_ranks(&self) -> u64 {
        let each: Vec<u64> = self.classes.iter().map(|program| program.instructions()).collect();
        self.class_of.iter().map(|&class| each[class as usize]).sum()
    }

    /// The same of hosts that wait for the end of everything they launch.
    pub fn blocking(self) -> Flight {
        let class_of = self.class_of.clone();
        Flight { classes: self.programs().into_iter().map(|program| Arc::new(program.blocking())).collect(), class_of }
    }

    /// The same on devices that take what all streams are given from one queue.
    pub fn in_one_queue(mut self) -> Flight {
        self.classes.iter_mut().for_each(|program| Arc::make_mut(program).one_queue = true);
        self
    }

    /// The same in so many rounds more than are written.
    pub fn going_on(mut self, rounds: u32) -> Flight {
        self.classes.iter_mut().for_each(|program| Arc::make_mut(program).further = rounds);
        self
    }

    /// Ranks run one class after the other, each class as many neighbours: the stages of a pipeline.
    pub fn in_turn(classes: Vec<Program>) -> Flight {
        let ranks = classes.first().map_or(0, |program| program.ranks);
        let each = (ranks as usize / classes.len().max(1)).max(1);
        let class_of = (0..ranks as usize).map(|rank| (rank / each) as u32).collect();
        Flight { classes: classes.into_iter().map(Arc::new).collect(), class_of }
    }
}

/// The schedule of a job, which was checked when the job was decided, but for its length: one that is too long has too many
/// instructions, too.
///
/// # Panics
///
/// If the job's schedule cannot have its shape.
pub(super) fn decided<S>(schedule: Result<S, ScheduleError>, budget: &Budget) -> S {
    match schedule {
        Ok(schedule) => schedule,
        Err(ScheduleError::TooLong { .. }) => budget.exceed(),
        Err(error) => panic!("a job's schedule was checked when the job was decided: {error}"),
    }
}
