//! A training job under ZeRO, fully decided.

use super::disk::Aio;
use super::gather::Gathering;
use super::reduce::Reduction;
use crate::program::DType;
use crate::runtime::train;
use crate::units::Finite;

/// What of a model's states is spread over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Stage {
    /// The optimizer's states.
    One,
    /// And gradients.
    Two,
    /// And parameters.
    Three,
}

/// `offload_optimizer`, `offload_param`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Offload {
    /// Whether what is stepped is in the host's memory, with its gradient and moments.
    pub optimizer: bool,
    /// `ratio`: the part of ZeRO-3's groups that are, the last ones.
    pub ratio: Finite,
    /// Whether the rank's part of parameters is there (ZeRO-3).
    pub parameters: bool,
    /// Whether what is stepped is in files, and comes for its step.
    pub states: Option<StateFiles>,
    /// Whether parameters are in files, and come for their gathers.
    pub files: Option<ParameterFiles>,
    /// How files are read and written.
    pub aio: Aio,
}

impl Offload {
    /// Of so many groups the first that is stepped on the host.
    pub(super) fn first_on_host(&self, groups: usize) -> usize {
        if self.optimizer { ((1.0 - self.ratio.get()) * groups as f64) as usize } else { groups }
    }
}

/// `offload_param.device = "nvme"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ParameterFiles {
    /// `buffer_count`.
    pub buffers: u64,
    /// `buffer_size` \[elements\].
    pub buffer: u64,
    /// `max_in_cpu` \[elements\].
    pub in_memory: u64,
}

/// `offload_optimizer.device = "nvme"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct StateFiles {
    /// `buffer_count`, each as large as the largest group.
    pub buffers: u64,
    /// `pipeline_read`.
    pub read_ahead: bool,
    /// `pipeline_write`.
    pub write_behind: bool,
}

/// `zero_quantized_weights`, `zero_quantized_gradients`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Quantized {
    /// Parameters cross in eight bits.
    pub weights: bool,
    /// Gradients cross in four bits, between so many nodes of so many ranks.
    pub gradients: Option<(u32, u32)>,
}

/// `zero_optimization`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Zero {
    /// `stage`.
    pub stage: Stage,
    /// Ranks that states are spread over: all.
    pub ranks: u32,
    /// Neighbours that share a sequence (`sequence_parallel_size`); 1: none.
    pub sequence: u32,
    /// `reduce_bucket_size` \[elements\].
    pub bucket: u64,
    /// `overlap_comm`: reductions run beside the backward, from two buffers in turn.
    pub overlap: bool,
    /// `round_robin_gradients`.
    pub round_robin: bool,
    /// What decides on gathers, under ZeRO-3.
    pub gathering: Gathering,
    /// `sub_group_size`, under ZeRO-3: elements of the rank's part that are stepped together, at least.
    pub sub_group: u64,
    /// What is in the host's memory, or on its disks.
    pub offload: Offload,
    /// `zero_hpz_partition_size`, under ZeRO-3: neighbouring ranks among which parameters are spread a second time; 1: none.
    pub hpz: u32,
    /// What crosses in fewer bits, under ZeRO-3.
    pub quantized: Quantized,
}

impl Zero {
    /// What decides on reductions.
    pub fn reduction(&self) -> Reduction {
        Reduction { ranks: self.ranks, bucket: self.bucket, contiguous: true, round_robin: self.round_robin }
    }

    /// The type in which gradients are reduced (`communication_data_type`, `seq_parallel_communication_data_type`).
    pub fn reduced(&self) -> DType {
        if self.sequence > 1 { DType::Fp32 } else { DType::Bf16 }
    }
}

/// A training job, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ZeroPlan {
    /// Model, batch, loss and optimizer, with nothing around them.
    pub whole: train::TorchPlan,
    /// `zero_optimization`.
    pub zero: Zero,
}
