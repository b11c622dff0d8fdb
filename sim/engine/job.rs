//! What the engine is given: a job of ranks that run programs at some cost, and how to run it.

use crate::program::Program;

use super::Costs;

/// How to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Steps to run back to back; the last one is reported. Three let the host settle into its lead over the device.
    pub steps: u32,
    /// Simulate one rank of each class for all of them. Exact, as ranks of a class run the same program at the same costs;
    /// refused if they meet ranks of different classes.
    pub fold: bool,
    /// Keep every span, and when the host did what in the last step.
    pub record: bool,
    /// Kernels and collectives that a stream holds, the running one included, before the host blocks. NVIDIA documents
    /// no limit; users find about 1,000 per stream (NVIDIA developer forum, thread 68937), so we take 1,024.
    pub queue_limit: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { steps: 3, fold: true, record: false, queue_limit: 1024 }
    }
}

/// One class of identical ranks: what they run and what it costs them.
#[derive(Clone, Copy, Debug)]
pub struct Class<'a> {
    /// What they run.
    pub program: &'a Program,
    /// What it costs.
    pub costs: &'a Costs,
}

/// A job whose ranks differ: pipeline stages, or a straggler among equals.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The classes; they share one table of groups and one number of ranks.
    pub classes: &'a [Class<'a>],
    /// The class of each rank, an index into `classes`.
    pub class_of: &'a [u32],
}
