//! Blocks in a pipeline, as MaxText runs them (`layers/pipeline.py`, `NNXPipeline`; `configs/types.py`).
//!
//! There is one loop, and every chip runs it. In each iteration a stage computes its blocks on what the stage before it made
//! in the last; while the pipeline fills and drains that is nothing that anybody asked for, and is computed all the same. With
//! S stages, M micro-batches and R repeats, and d = 2 where what is sent takes an iteration on its way (else 1):
//!
//! ```text
//! iterations = M·R + d·(S − 1)        bubble = d·(S − 1) / iterations
//! ```
//!
//! What is carried from iteration to iteration: inputs, in whose places the results come (`state_io`, sharded over stages),
//! what goes to the next stage (`shift`), and with repeats what the last stage made until the first takes it up
//! (`circ_storage`, all micro-batches on every stage). A collective-permute turns each once an iteration.

use super::policy::Policy;

/// How blocks are run in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Pipeline {
    /// Its stages.
    pub stages: u64,
    /// Blocks in it (`pipeline_parallel_layers`); the rest follow it, and take stages for data.
    pub layers: u64,
    /// Blocks of a stage that follow one another (`num_layers_per_pipeline_stage`).
    pub layers_per_stage: u64,
    /// How often a micro-batch goes around (`num_pipeline_repeats`).
    pub repeats: u64,
    /// Parts of the batch (`num_pipeline_microbatches`).
    pub micro_batches: u64,
    /// Whether results are sent an iteration later (`pipeline_delay_activation_forwarding`).
    pub delay: bool,
    /// Whether weights are gathered once, before the loop (`pipeline_fsdp_ag_once`).
    pub gather_once: bool,
    /// What is kept of an iteration.
    pub remat: Policy,
}

impl Pipeline {
    /// Iterations that compute nothing that anybody asked for, on each stage.
    pub fn wasted(&self) -> u64 {
        (self.stages - 1) * if self.delay { 2 } else { 1 }
    }

    /// Iterations of the loop.
    pub fn iterations(&self) -> u64 {
        self.micro_batches * self.repeats + self.wasted()
    }

    /// Share of the loop that computes nothing that anybody asked for.
    pub fn bubble(&self) -> f64 {
        self.wasted() as f64 / self.iterations() as f64
    }

    /// Micro-batches whose inputs, and then results, a stage holds.
    pub fn held(&self) -> u64 {
        self.micro_batches / self.stages
    }

    /// Whether what the last stage made waits for the first to be done with other micro-batches (`need_circ_storage`).
    pub fn stores(&self) -> bool {
        self.repeats > 1 && self.micro_batches > self.stages * if self.delay { 2 } else { 1 }
    }
}
