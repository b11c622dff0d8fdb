//! How a model is cut into stages, and who runs them when.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::schedule::{Entry, Placement, Schedule, Shape};

/// Who runs what when.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Order {
    /// One of `torch.distributed.pipelining`.
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
}
