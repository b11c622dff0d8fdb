//! The table of DeepSpeed's ZeRO.

use super::readers::ZERO;
use super::row::Choice::Word;
use super::row::Kind::{Choice, Count, Flag, Number, Text};
use super::row::{Group, Key, Table};

/// `[zero]`
pub(super) const ZERO_KEYS: Table = Table {
    name: "zero",
    help: "DeepSpeed's `zero_optimization`.",
    group: Group::Sharding,
    owner: Some("deepspeed-zero"),
    instead: &[],
    keys: &[
        Key::new(
            "stage",
            Count(None),
            ZERO,
            "`stage`: what is sharded. 1: optimizer states; 2: gradients, too; 3: parameters, too.",
        ),
        Key::new(
            "reduce_bucket_size",
            Count(Some((1, 1 << 40))),
            ZERO,
            "`reduce_bucket_size`: elements of a bucket of gradients.",
        ),
        Key::new(
            "allgather_bucket_size",
            Count(Some((1, 1 << 40))),
            ZERO,
            "`allgather_bucket_size`, in elements. It changes nothing that is predicted.",
        ),
        Key::new("overlap_comm", Flag, ZERO, "`overlap_comm`: whether gradients are reduced while backward runs."),
        Key::new(
            "contiguous_gradients",
            Flag,
            ZERO,
            "`contiguous_gradients`: whether gradients are copied into one buffer as they are made.",
        ),
        Key::new(
            "reduce_scatter",
            Flag,
            ZERO,
            "`reduce_scatter`: whether gradients are reduced to the rank that needs them, instead of to all.",
        ),
        Key::new(
            "round_robin_gradients",
            Flag,
            ZERO,
            "`round_robin_gradients`: whether copies of gradients to the host are distributed over ranks.",
        ),
        Key::new(
            "stage3_prefetch_bucket_size",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`stage3_prefetch_bucket_size`: elements that ZeRO-3 gathers before they are needed.",
        ),
        Key::new(
            "stage3_param_persistence_threshold",
            Count(None),
            ZERO,
            "`stage3_param_persistence_threshold`: parameters with fewer elements are never sharded.",
        ),
        Key::new(
            "stage3_max_live_parameters",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`stage3_max_live_parameters`: the most gathered elements at a time.",
        ),
        Key::new(
            "stage3_max_reuse_distance",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`stage3_max_reuse_distance`: a parameter that is used again within so many elements stays gathered.",
        ),
        Key::new(
            "sub_group_size",
            Count(Some((1, 1 << 40))),
            ZERO,
            "`sub_group_size`: elements of which the optimizer steps one group after the other.",
        ),
        Key::new(
            "zero_hpz_partition_size",
            Count(None),
            ZERO,
            "`zero_hpz_partition_size`: ranks that keep a second copy of the shards (ZeRO++).",
        ),
        Key::new(
            "zero_quantized_weights",
            Flag,
            ZERO,
            "`zero_quantized_weights`: whether parameters are gathered in eight bits (ZeRO++).",
        ),
        Key::new(
            "zero_quantized_nontrainable_weights",
            Flag,
            ZERO,
            "`zero_quantized_nontrainable_weights`. It changes nothing where all weights are trained.",
        ),
        Key::new(
            "zero_quantized_gradients",
            Flag,
            ZERO,
            "`zero_quantized_gradients`: whether gradients are reduced in four bits (ZeRO++).",
        ),
        Key::new(
            "offload_optimizer.device",
            Choice(&[Word("none"), Word("cpu"), Word("nvme")]),
            ZERO,
            "Where optimizer states live: on the GPU, in the host's memory, or on its disks.",
        ),
        Key::new(
            "offload_optimizer.pin_memory",
            Flag,
            ZERO,
            "`pin_memory`: whether host buffers of the optimizer are pinned.",
        ),
        Key::new(
            "offload_optimizer.nvme_path",
            Text,
            ZERO,
            "`nvme_path`: the folder on disk. It changes nothing that is predicted.",
        ),
        Key::new(
            "offload_optimizer.buffer_count",
            Count(Some((0, 1 << 16))),
            ZERO,
            "`buffer_count`: buffers between host and disk. It has an effect only with `nvme`.",
        ),
        Key::new(
            "offload_optimizer.pipeline_read",
            Flag,
            ZERO,
            "`pipeline_read`: whether the next group is read while one is stepped (`nvme` only).",
        ),
        Key::new(
            "offload_optimizer.pipeline_write",
            Flag,
            ZERO,
            "`pipeline_write`: whether the last group is written while one is stepped (`nvme` only).",
        ),
        Key::new(
            "offload_optimizer.fast_init",
            Flag,
            ZERO,
            "`fast_init`: how states are first written to disk, which happens before the first step (`nvme` only).",
        ),
        Key::new(
            "offload_optimizer.ratio",
            Number,
            ZERO,
            "`ratio`: share of groups that are stepped on the host (ZeRO-3).",
        ),
        Key::new(
            "offload_param.device",
            Choice(&[Word("none"), Word("cpu"), Word("nvme")]),
            ZERO,
            "Where sharded parameters live: on the GPU, in the host's memory, or on its disks.",
        ),
        Key::new(
            "offload_param.pin_memory",
            Flag,
            ZERO,
            "`pin_memory`: whether host buffers of parameters are pinned.",
        ),
        Key::new(
            "offload_param.nvme_path",
            Text,
            ZERO,
            "`nvme_path`: the folder on disk. It changes nothing that is predicted.",
        ),
        Key::new(
            "offload_param.buffer_count",
            Count(Some((0, 1 << 16))),
            ZERO,
            "`buffer_count`: buffers between host and disk. It has an effect only with `nvme`.",
        ),
        Key::new(
            "offload_param.buffer_size",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`buffer_size`: elements of a buffer (`nvme` only).",
        ),
        Key::new(
            "offload_param.max_in_cpu",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`max_in_cpu`: elements that stay in host memory (`nvme` only).",
        ),
        Key::new(
            "aio.block_size",
            Count(Some((1, 1 << 40))),
            ZERO,
            "`block_size`: bytes of one read or write of a disk.",
        ),
        Key::new("aio.queue_depth", Count(None), ZERO, "`queue_depth`: reads and writes in flight."),
        Key::new(
            "aio.intra_op_parallelism",
            Count(Some((1, 1024))),
            ZERO,
            "`intra_op_parallelism`: threads of a handle.",
        ),
        Key::new("aio.single_submit", Flag, ZERO, "`single_submit`: whether each read or write is submitted alone."),
        Key::new("aio.overlap_events", Flag, ZERO, "`overlap_events`: whether submission and completion overlap."),
        Key::new("aio.use_gds", Flag, ZERO, "`use_gds`: whether data goes between disks and GPU without the host."),
    ],
};
