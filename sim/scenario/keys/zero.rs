//! The table of DeepSpeed's ZeRO. Keys are those of `zero_optimization` in its configuration.

use serde::Deserialize;
use toml::Spanned;

use super::readers::ZERO;
use super::row::{Key, between, joined};

/// Its keys and those of the tables in it.
const KEYS: [Key; Zero::KEYS.len() + OffloadOptimizer::KEYS.len() + OffloadParam::KEYS.len() + Aio::KEYS.len()] =
    joined(&[Zero::KEYS, OffloadOptimizer::KEYS, OffloadParam::KEYS, Aio::KEYS]);

keys! {
    /// DeepSpeed's `zero_optimization`.
    #[derive(Debug, Default, Deserialize)]
    ["zero"] Zero in Sharding.owner("deepspeed-zero").keys(&KEYS);

    /// `stage`: what is sharded. 1: optimizer states; 2: gradients, too; 3: parameters, too.
    stage: Option<Spanned<i64>> => ZERO.such_as("3");
    /// `reduce_bucket_size`: elements of a bucket of gradients.
    reduce_bucket_size: Option<Spanned<i64>> as between(1, 1 << 40) => ZERO.such_as("200000000")
        default ZERO => "500000000" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:113";
    /// `allgather_bucket_size`, in elements. It changes nothing that is predicted.
    allgather_bucket_size: Option<Spanned<i64>> as between(1, 1 << 40) => ZERO.such_as("200000000");
    /// `overlap_comm`: whether gradients are reduced while backward runs.
    overlap_comm: Option<bool> => ZERO
        default ZERO => "false or true" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:138,384-386";
    /// `contiguous_gradients`: whether gradients are copied into one buffer as they are made.
    contiguous_gradients: Option<Spanned<bool>> => ZERO;
    /// `reduce_scatter`: whether gradients are reduced to the rank that needs them, instead of to all.
    reduce_scatter: Option<Spanned<bool>> => ZERO;
    /// `round_robin_gradients`: whether copies of gradients to the host are distributed over ranks.
    round_robin_gradients: Option<Spanned<bool>> => ZERO
        default ZERO => "false" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:309";
    /// `stage3_prefetch_bucket_size`: elements that ZeRO-3 gathers before they are needed.
    stage3_prefetch_bucket_size: Option<Spanned<i64>> as between(0, 1 << 40) => ZERO.such_as("100000000")
        default ZERO => "50000000" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:222";
    /// `stage3_param_persistence_threshold`: parameters with fewer elements are never sharded.
    stage3_param_persistence_threshold: Option<Spanned<i64>> => ZERO.such_as("1000000")
        default ZERO => "100000" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:228";
    /// `stage3_max_live_parameters`: the most gathered elements at a time.
    stage3_max_live_parameters: Option<Spanned<i64>> as between(0, 1 << 40) => ZERO.such_as("500000000")
        default ZERO => "1000000000" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:245,251";
    /// `stage3_max_reuse_distance`: a parameter that is used again within so many elements stays gathered.
    stage3_max_reuse_distance: Option<Spanned<i64>> as between(0, 1 << 40) => ZERO.such_as("500000000")
        default ZERO => "1000000000" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:245,251";
    /// `sub_group_size`: elements of which the optimizer steps one group after the other.
    sub_group_size: Option<Spanned<i64>> as between(1, 1 << 40) => ZERO.such_as("500000000")
        default ZERO => "1000000000" of "DeepSpeed 0.19.8 (0.19.6 cited)" at "deepspeed/runtime/zero/config.py:182";
    /// `zero_hpz_partition_size`: ranks that keep a second copy of the shards (ZeRO++).
    zero_hpz_partition_size: Option<Spanned<i64>> => ZERO.such_as("8");
    /// `zero_quantized_weights`: whether parameters are gathered in eight bits (ZeRO++).
    zero_quantized_weights: Option<Spanned<bool>> => ZERO;
    /// `zero_quantized_nontrainable_weights`. It changes nothing where all weights are trained.
    zero_quantized_nontrainable_weights: Option<bool> => ZERO;
    /// `zero_quantized_gradients`: whether gradients are reduced in four bits (ZeRO++).
    zero_quantized_gradients: Option<Spanned<bool>> => ZERO;

    tables {
        /// `offload_optimizer`.
        offload_optimizer: Option<Spanned<OffloadOptimizer>>;
        /// `offload_param`.
        offload_param: Option<Spanned<OffloadParam>>;
        /// `aio`, which DeepSpeed has beside `zero_optimization`.
        aio: Option<Spanned<Aio>>;
    }
}

keys! {
    /// `aio`: how files are read and written.
    #[derive(Debug, Deserialize)]
    within ("zero.") "aio.", Aio;

    /// `block_size`: bytes of one read or write of a disk.
    block_size: Option<Spanned<i64>> as between(1, 1 << 40) => ZERO.such_as("1048576");
    /// `queue_depth`: reads and writes in flight.
    queue_depth: Option<i64> => ZERO.such_as("32");
    /// `intra_op_parallelism`: threads of a handle.
    intra_op_parallelism: Option<Spanned<i64>> as between(1, 1024) => ZERO.such_as("4");
    /// `single_submit`: whether each read or write is submitted alone.
    single_submit: Option<bool> => ZERO;
    /// `overlap_events`: whether submission and completion overlap.
    overlap_events: Option<bool> => ZERO;
    /// `use_gds`: whether data goes between disks and GPU without the host.
    use_gds: Option<Spanned<bool>> => ZERO;
}

keys! {
    /// `offload_optimizer`.
    #[derive(Debug, Deserialize)]
    within ("zero.") "offload_optimizer.", OffloadOptimizer;

    /// Where optimizer states live: on the GPU, in the host's memory, or on its disks.
    device: Option<Spanned<Device>> => ZERO;
    /// `pin_memory`: whether host buffers of the optimizer are pinned.
    pin_memory: Option<Spanned<bool>> => ZERO;
    /// `nvme_path`: the folder on disk. It changes nothing that is predicted.
    nvme_path: Option<String> => ZERO.such_as("\"/local_nvme\"");
    /// `buffer_count`: buffers between host and disk. It has an effect only with `nvme`.
    buffer_count: Option<Spanned<i64>> as between(0, 1 << 16) => ZERO.such_as("4");
    /// `pipeline_read`: whether the next group is read while one is stepped (`nvme` only).
    pipeline_read: Option<bool> => ZERO;
    /// `pipeline_write`: whether the last group is written while one is stepped (`nvme` only).
    pipeline_write: Option<bool> => ZERO;
    /// `fast_init`: how states are first written to disk, which happens before the first step (`nvme` only).
    fast_init: Option<bool> => ZERO;
    /// `ratio`: share of groups that are stepped on the host (ZeRO-3).
    ratio: Option<Spanned<f64>> => ZERO.such_as("0.3");
}

keys! {
    /// `offload_param`.
    #[derive(Debug, Deserialize)]
    within ("zero.") "offload_param.", OffloadParam;

    /// Where sharded parameters live: on the GPU, in the host's memory, or on its disks.
    device: Option<Spanned<Device>> => ZERO;
    /// `pin_memory`: whether host buffers of parameters are pinned.
    pin_memory: Option<Spanned<bool>> => ZERO;
    /// `nvme_path`: the folder on disk. It changes nothing that is predicted.
    nvme_path: Option<String> => ZERO.such_as("\"/local_nvme\"");
    /// `buffer_count`: buffers between host and disk. It has an effect only with `nvme`.
    buffer_count: Option<Spanned<i64>> as between(0, 1 << 16) => ZERO.such_as("5");
    /// `buffer_size`: elements of a buffer (`nvme` only).
    buffer_size: Option<Spanned<i64>> as between(0, 1 << 40) => ZERO.such_as("100000000");
    /// `max_in_cpu`: elements that stay in host memory (`nvme` only).
    max_in_cpu: Option<Spanned<i64>> as between(0, 1 << 40) => ZERO.such_as("1000000000");
}

words! {
    /// Where states are kept.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Device {
        /// On the device.
        None = "none",
        /// In the host's memory.
        Cpu = "cpu",
        /// On its disks.
        Nvme = "nvme",
    }
}
