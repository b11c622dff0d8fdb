//! How a model is cut into stages, and who runs them when.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::program::StreamId;
use crate::runtime::fsdp::OF_EACH_ROOT;
use crate::runtime::train::part::Part;
use crate::schedule::order;
use crate::schedule::{Entry, Kind, Placement, Schedule, ScheduleError, Shape};

/// Streams of messages: of batches, and of each pair of neighbours that a rank is in.
pub(in crate::runtime) const STREAMS: [&str; 3] = ["pipeline", "pipeline, rank before", "pipeline, rank after"];

/// Schedules of `torch.distributed.pipelining` that are simulated; the first is torchtitan's default.
pub const SCHEDULES: [&Entry; 7] = order::TORCH;

/// Who runs what when.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Order {
    /// One of [`SCHEDULES`].
    Named(&'static Entry),
    /// That of a file, and how its stages lie on ranks (torchtitan's `pipeline_parallel_schedule_csv`). Its lists are walked,
    /// those of one stage a rank too.
    File(#[serde(serialize_with = "whole")] Arc<Schedule>, Placement),
}

/// Writes what a file says.
fn whole<S: Serializer>(schedule: &Arc<Schedule>, serializer: S) -> Result<S::Ok, S::Error> {
    schedule.as_ref().serialize(serializer)
}

impl Order {
    /// Its name, or the file's.
    pub fn name(&self) -> &str {
        match self {
            Order::Named(entry) => entry.name,
            Order::File(schedule, _) => &schedule.name,
        }
    }

    /// Which rank runs which stage.
    pub fn placement(&self) -> Placement {
        match self {
            Order::Named(entry) => entry.placement,
            Order::File(_, placement) => *placement,
        }
    }

    /// Whether backwards come in halves.
    pub(super) fn halves(&self) -> bool {
        match self {
            Order::Named(entry) => entry.is_of(&order::TORCH_HALVES),
            Order::File(schedule, _) => schedule.lists.all().iter().any(|action| action.kind == Kind::Weight),
        }
    }
}

/// How a model is cut into stages, and when their ranks do what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Pipeline {
    /// Who runs what when.
    pub schedule: Order,
    /// Pipeline ranks.
    pub ranks: u32,
    /// Stages on each rank.
    pub virtual_stages: u32,
    /// Blocks of each stage.
    pub layers: Vec<u64>,
}

impl Pipeline {
    /// Whether a file says who runs what when, and so for how many micro-batches.
    pub fn is_from_file(&self) -> bool {
        matches!(self.schedule, Order::File(..))
    }

    /// What its schedule is a function of.
    pub fn shape(&self, microbatches: u32) -> Shape {
        Shape { ranks: self.ranks, virtual_stages: self.virtual_stages, microbatches }
    }

    /// The stages of a rank, in the order in which it holds them.
    pub fn stages(&self, rank: u32) -> Vec<usize> {
        let stage = |chunk| usize::from(self.shape(1).stage(self.schedule.placement(), rank, chunk));
        (0..self.virtual_stages).map(stage).collect()
    }

    /// What a stage has of the model.
    pub(super) fn part(&self, stage: usize) -> Part {
        let first: u64 = self.layers[..stage].iter().sum();
        let blocks = first as usize..(first + self.layers[stage]) as usize;
        Part { embedding: stage == 0, blocks, head: stage + 1 == self.layers.len() }
    }

    /// The first of the streams of messages, behind FSDP's.
    pub(super) fn messages(&self) -> StreamId {
        StreamId((1 + OF_EACH_ROOT * self.virtual_stages as usize) as u8)
    }
}

/// Blocks of each stage where the first and the last count as so many blocks more; what does not divide goes to the first
/// stages.
pub fn split(layers: u64, stages: u64, [first, last]: [u64; 2]) -> Result<Vec<u64>, String> {
    let all = layers + first + last;
    let (each, more) = (all / stages, all % stages);
    for (what, weight) in [("first", first), ("last", last)] {
        if weight > each || each == 0 {
            return Err(format!(
                "{layers} blocks do not make {stages} stages of {each} of which the {what} has {weight} less"
            ));
        }
    }
    let of = |stage: u64| {
        let less = if stage == 0 { first } else { 0 } + if stage + 1 == stages { last } else { 0 };
        each + u64::from(stage < more) - less
    };
    Ok((0..stages).map(of).collect())
}

/// The job's schedule; an error if it cannot have this shape.
pub fn schedule(pipeline: &Pipeline, microbatches: u32) -> Result<Arc<Schedule>, ScheduleError> {
    match &pipeline.schedule {
        Order::Named(entry) => entry.build(pipeline.shape(microbatches)).map(Arc::new),
        Order::File(schedule, _) => Ok(schedule.clone()),
    }
}
