//! The table of DeepSpeed's ZeRO. Keys are those of `zero_optimization` in its configuration.

use serde::Deserialize;
use toml::Spanned;

/// `[zero]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zero {
    /// `stage`: 1, 2 or 3.
    pub stage: Option<Spanned<i64>>,
    /// `reduce_bucket_size`, in elements.
    pub reduce_bucket_size: Option<Spanned<i64>>,
    /// `allgather_bucket_size`, in elements: without effect.
    pub allgather_bucket_size: Option<Spanned<i64>>,
    /// `overlap_comm`.
    pub overlap_comm: Option<bool>,
    /// `contiguous_gradients`.
    pub contiguous_gradients: Option<Spanned<bool>>,
    /// `reduce_scatter`.
    pub reduce_scatter: Option<Spanned<bool>>,
    /// `round_robin_gradients`.
    pub round_robin_gradients: Option<Spanned<bool>>,
    /// `stage3_prefetch_bucket_size`, in elements.
    pub stage3_prefetch_bucket_size: Option<Spanned<i64>>,
    /// `stage3_param_persistence_threshold`, in elements.
    pub stage3_param_persistence_threshold: Option<Spanned<i64>>,
    /// `stage3_max_live_parameters`, in elements.
    pub stage3_max_live_parameters: Option<Spanned<i64>>,
    /// `stage3_max_reuse_distance`, in elements.
    pub stage3_max_reuse_distance: Option<Spanned<i64>>,
    /// `sub_group_size`, in elements.
    pub sub_group_size: Option<Spanned<i64>>,
    /// `zero_hpz_partition_size`, in ranks.
    pub zero_hpz_partition_size: Option<Spanned<i64>>,
    /// `zero_quantized_weights`.
    pub zero_quantized_weights: Option<Spanned<bool>>,
    /// `zero_quantized_nontrainable_weights`: without effect where all weights are trained.
    pub zero_quantized_nontrainable_weights: Option<bool>,
    /// `zero_quantized_gradients`.
    pub zero_quantized_gradients: Option<Spanned<bool>>,
    /// `offload_optimizer`.
    pub offload_optimizer: Option<Spanned<OffloadOptimizer>>,
    /// `offload_param`.
    pub offload_param: Option<Spanned<OffloadParam>>,
    /// `aio`, which DeepSpeed has beside `zero_optimization`.
    pub aio: Option<Spanned<Aio>>,
}

/// `aio`: how files are read and written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aio {
    /// `block_size`, in bytes.
    pub block_size: Option<Spanned<i64>>,
    /// `queue_depth`.
    pub queue_depth: Option<i64>,
    /// `intra_op_parallelism`: threads of a handle.
    pub intra_op_parallelism: Option<Spanned<i64>>,
    /// `single_submit`.
    pub single_submit: Option<bool>,
    /// `overlap_events`.
    pub overlap_events: Option<bool>,
    /// `use_gds`: files go to the device directly.
    pub use_gds: Option<Spanned<bool>>,
}

/// `offload_optimizer`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadOptimizer {
    /// `none`, `cpu` or `nvme`.
    pub device: Option<Spanned<Device>>,
    /// `pin_memory`.
    pub pin_memory: Option<Spanned<bool>>,
    /// `nvme_path`: without effect on what is predicted.
    pub nvme_path: Option<String>,
    /// `buffer_count`: without effect but for disks, as all that follow but `ratio`.
    pub buffer_count: Option<Spanned<i64>>,
    /// `pipeline_read`.
    pub pipeline_read: Option<bool>,
    /// `pipeline_write`.
    pub pipeline_write: Option<bool>,
    /// `fast_init`: of what happens before the first step.
    pub fast_init: Option<bool>,
    /// `ratio`: the part of groups that are stepped on the host (ZeRO-3).
    pub ratio: Option<Spanned<f64>>,
}

/// `offload_param`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadParam {
    /// `none`, `cpu` or `nvme`.
    pub device: Option<Spanned<Device>>,
    /// `pin_memory`.
    pub pin_memory: Option<Spanned<bool>>,
    /// `nvme_path`: without effect on what is predicted.
    pub nvme_path: Option<String>,
    /// `buffer_count`: without effect but for disks, as all that follow.
    pub buffer_count: Option<Spanned<i64>>,
    /// `buffer_size`, in elements.
    pub buffer_size: Option<Spanned<i64>>,
    /// `max_in_cpu`, in elements.
    pub max_in_cpu: Option<Spanned<i64>>,
}

/// Where states are kept.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// On the device.
    None,
    /// In the host's memory.
    Cpu,
    /// On its disks.
    Nvme,
}
