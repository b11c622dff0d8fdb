//! Who runs which blocks, and when.

use crate::schedule::order::Entry;

/// The pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Pipeline {
    /// Who runs what when.
    pub schedule: &'static Entry,
    /// Stages on each rank (`--num-layers-per-virtual-pipeline-stage` says how long they are).
    pub virtual_stages: u32,
    /// Blocks of each stage, the model's first stage first; `mesh.pp · virtual_stages` numbers.
    pub layers: Vec<u64>,
    /// `--overlap-p2p-communication` of interleaved schedules: sends and receives of a step wait only where they are used.
    pub overlap_p2p: bool,
    /// `--no-scatter-gather-tensors-in-pipeline` unset, in Megatron-LM from February 2021 to March 2023: of an activation
    /// that all tensor-parallel ranks hold each sends a part, and the receivers gather it (`megatron/p2p_communication.py`).
    pub scatter_gather: bool,
}
