//! Lists that make sense: every micro-batch goes forward and back once through every stage, in that order.

use super::{Action, Batching, Kind, Lists, ScheduleError, Shape};

/// A checked schedule: what each rank computes, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Schedule {
    /// Its name, or the file it was read from.
    pub name: String,
    /// Stages of the model, over all ranks.
    pub stages: usize,
    /// Micro-batches of one step.
    pub microbatches: usize,
    /// The rank of each stage.
    pub rank_of: Vec<u32>,
    /// What each rank computes.
    pub lists: Lists,
    /// How sends and receives are issued.
    pub batching: Batching,
}

/// What has been done to one micro-batch at one stage.
#[derive(Clone, Copy, Default)]
struct Done {
    forward: bool,
    input: bool,
    weight: bool,
}

impl Schedule {
    /// Checks lists of computations; the numbers of stages and micro-batches are read off them.
    pub fn new(name: String, lists: Lists, batching: Batching) -> Result<Schedule, ScheduleError> {
        let most = |of: fn(&Action) -> usize| lists.all().iter().map(of).max().map_or(0, |last| last + 1);
        let stages = most(|action| action.stage as usize);
        let microbatches = most(|action| action.microbatch as usize);
        let mut rank_of = vec![u32::MAX; stages];
        let mut done = vec![Done::default(); stages * microbatches];
        for rank in 0..lists.ranks() {
            for (at, action) in lists.rank(rank).iter().enumerate() {
                let wrong =
                    |problem: String| ScheduleError::Order { rank, entry: at + 1, action: action.to_string(), problem };
                if !action.kind.computes() {
                    return Err(wrong("a list of computations holds no communication".to_owned()));
                }
                let owner = &mut rank_of[action.stage as usize];
                if *owner == u32::MAX {
                    *owner = u32::try_from(rank).expect("fewer than 2^32 ranks");
                } else if *owner as usize != rank {
                    return Err(wrong(format!("stage {} is rank {owner}'s already", action.stage)));
                }
                let state = &mut done[action.stage as usize * microbatches + action.microbatch as usize];
                advance(state, action.kind).map_err(|problem| wrong(problem.to_owned()))?;
            }
        }
        for stage in 0..stages {
            let of_stage = &done[stage * microbatches..(stage + 1) * microbatches];
            let missing = |what: fn(&Done) -> bool| of_stage.iter().position(|state| !what(state));
            let gap = [("forward", missing(|s| s.forward)), ("backward", missing(|s| s.input && s.weight))];
            if let Some((what, Some(first))) = gap.iter().find(|(_, gap)| gap.is_some()) {
                let problem = format!("micro-batch {first} of {microbatches} has no {what}");
                return Err(ScheduleError::Incomplete { stage, problem });
            }
        }
        Ok(Schedule { name, stages, microbatches, rank_of, lists, batching })
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.lists.ranks()
    }

    /// What it is a function of; for lists from a file, whose ranks may run different numbers of stages, their average.
    pub fn shape(&self) -> Shape {
        let count = |count: usize| u32::try_from(count).expect("fewer than 2^32 of anything");
        let ranks = count(self.ranks());
        Shape { ranks, virtual_stages: count(self.stages) / ranks.max(1), microbatches: count(self.microbatches) }
    }

    /// Whether what `stage` and the one after it exchange crosses ranks.
    pub fn crosses(&self, stage: usize) -> bool {
        stage + 1 < self.stages && self.rank_of[stage] != self.rank_of[stage + 1]
    }
}

/// The next state of a micro-batch at a stage, or why there is none.
fn advance(state: &mut Done, kind: Kind) -> Result<(), &'static str> {
    let (ready, again) = match kind {
        Kind::Forward => (true, state.forward),
        Kind::Weight => (state.input, state.weight),
        _ => (state.forward, state.input),
    };
    if again {
        return Err("the same has been done before");
    }
    if !ready {
        return Err(if kind == Kind::Weight {
            "comes before the backward of the input"
        } else {
            "comes before its forward"
        });
    }
    match kind {
        Kind::Forward => state.forward = true,
        Kind::Input => state.input = true,
        Kind::Weight => state.weight = true,
        _ => (state.input, state.weight) = (true, true),
    }
    Ok(())
}
