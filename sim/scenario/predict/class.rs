//! Ranks that run the same program.

use std::sync::Arc;

use super::costs::Evidence;
use super::memory::DeviceMemory;
use super::parts::Counts;
use crate::engine::Breakdown;
use crate::program::Program;

/// Ranks that run the same program: all of them, or a stage of a pipeline.
#[derive(Debug)]
pub struct Class {
    /// The program of each of its ranks; of fewer micro-batches than the step has, where those repeat themselves.
    pub program: Arc<Program>,
    /// Costs of its parts, with their evidence.
    pub evidence: Evidence,
    /// How often one of its ranks issues each part in a step.
    pub counts: Counts,
    /// Memory of each of its devices.
    pub memory: DeviceMemory,
    /// Where the step of one of its ranks went.
    pub breakdown: Breakdown,
    /// How many ranks it has.
    pub ranks: u32,
}
