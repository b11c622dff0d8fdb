//! What a stage has of the model, its streams, and who runs it when.

use std::sync::Arc;

use crate::plan::torch::{Order, Pipeline};
use crate::program::StreamId;
use crate::runtime::fsdp::OF_EACH_ROOT;
use crate::runtime::train::part::Part;
use crate::schedule::order;
use crate::schedule::{Entry, Kind, Schedule, ScheduleError};

/// Streams of messages: of batches, and of each pair of neighbours that a rank is in.
pub(in crate::runtime) const STREAMS: [&str; 3] = ["pipeline", "pipeline, rank before", "pipeline, rank after"];

/// Schedules of `torch.distributed.pipelining` that are simulated; the first is torchtitan's default.
pub const SCHEDULES: [&Entry; 7] = order::TORCH;

impl Order {
    /// Whether backwards come in halves.
    pub(super) fn halves(&self) -> bool {
        match self {
            Order::Named(entry) => entry.is_of(&order::TORCH_HALVES),
            Order::File(schedule, _) => schedule.lists.all().iter().any(|action| action.kind == Kind::Weight),
        }
    }
}

impl Pipeline {
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
