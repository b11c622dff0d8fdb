//! A training job under ZeRO, fully decided.

use super::torch::TorchPlan;
use crate::program::DType;
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

/// What is at least so large is a file (`MIN_AIO_BYTES`).
const LEAST: u64 = 1 << 20;
/// What each thread reads and writes is a multiple of so many bytes (`AIO_ALIGNED_BYTES`).
const ALIGNED: u64 = 1024;

/// `aio`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Aio {
    /// `block_size` \[B\].
    pub block: u64,
    /// `intra_op_parallelism`: threads of a handle.
    pub threads: u64,
}

impl Default for Aio {
    /// DeepSpeed's own (`swap_tensor/constants.py`).
    fn default() -> Self {
        Aio { block: 1 << 20, threads: 1 }
    }
}

impl Aio {
    /// Whether so many bytes are kept in a file.
    pub fn swappable(self, bytes: u64) -> bool {
        bytes >= LEAST.max(self.block)
    }

    /// Bytes of a file of so many.
    pub fn aligned(self, bytes: u64) -> u64 {
        bytes.next_multiple_of(ALIGNED * self.threads)
    }

    /// Of so many bytes those that need no filling up.
    pub(crate) fn whole(self, bytes: u64) -> u64 {
        bytes - bytes % (ALIGNED * self.threads)
    }
}

/// What decides on gathers \[elements\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Gathering {
    /// `stage3_prefetch_bucket_size`; 0: nothing is gathered ahead.
    pub prefetch: u64,
    /// `stage3_param_persistence_threshold`: parameters of at most so many stay gathered.
    pub persist: u64,
    /// `stage3_max_live_parameters`.
    pub live: u64,
    /// `stage3_max_reuse_distance`.
    pub reuse: u64,
}

impl Default for Gathering {
    /// DeepSpeed's own (`zero/config.py`).
    fn default() -> Self {
        Gathering { prefetch: 50_000_000, persist: 100_000, live: 1_000_000_000, reuse: 1_000_000_000 }
    }
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
    pub(crate) fn first_on_host(&self, groups: usize) -> usize {
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
    /// Gradients cross in four bits, within nodes and then between them.
    pub gradients: Option<Nodes>,
}

/// How ranks lie on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Nodes {
    /// Nodes.
    pub count: u32,
    /// Ranks of each.
    pub ranks: u32,
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
    /// The type in which gradients are reduced (`communication_data_type`, `seq_parallel_communication_data_type`).
    pub fn reduced(&self) -> DType {
        if self.sequence > 1 { DType::Fp32 } else { DType::Bf16 }
    }
}

/// A training job, fully decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ZeroPlan {
    /// Model, batch, loss and optimizer, with nothing around them.
    pub whole: TorchPlan,
    /// `zero_optimization`.
    pub zero: Zero,
}
