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
        Key::new("stage", Count(None), ZERO, "`stage`: 1, 2 or 3."),
        Key::new("reduce_bucket_size", Count(Some((1, 1 << 40))), ZERO, "`reduce_bucket_size`, in elements."),
        Key::new(
            "allgather_bucket_size",
            Count(Some((1, 1 << 40))),
            ZERO,
            "`allgather_bucket_size`, in elements: without effect.",
        ),
        Key::new("overlap_comm", Flag, ZERO, "`overlap_comm`."),
        Key::new("contiguous_gradients", Flag, ZERO, "`contiguous_gradients`."),
        Key::new("reduce_scatter", Flag, ZERO, "`reduce_scatter`."),
        Key::new("round_robin_gradients", Flag, ZERO, "`round_robin_gradients`."),
        Key::new(
            "stage3_prefetch_bucket_size",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`stage3_prefetch_bucket_size`, in elements.",
        ),
        Key::new(
            "stage3_param_persistence_threshold",
            Count(None),
            ZERO,
            "`stage3_param_persistence_threshold`, in elements.",
        ),
        Key::new(
            "stage3_max_live_parameters",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`stage3_max_live_parameters`, in elements.",
        ),
        Key::new(
            "stage3_max_reuse_distance",
            Count(Some((0, 1 << 40))),
            ZERO,
            "`stage3_max_reuse_distance`, in elements.",
        ),
        Key::new("sub_group_size", Count(Some((1, 1 << 40))), ZERO, "`sub_group_size`, in elements."),
        Key::new("zero_hpz_partition_size", Count(None), ZERO, "`zero_hpz_partition_size`, in ranks."),
        Key::new("zero_quantized_weights", Flag, ZERO, "`zero_quantized_weights`."),
        Key::new(
            "zero_quantized_nontrainable_weights",
            Flag,
            ZERO,
            "`zero_quantized_nontrainable_weights`: without effect where all weights are trained.",
        ),
        Key::new("zero_quantized_gradients", Flag, ZERO, "`zero_quantized_gradients`."),
        Key::new(
            "offload_optimizer.device",
            Choice(&[Word("none"), Word("cpu"), Word("nvme")]),
            ZERO,
            "`none`, `cpu` or `nvme`.",
        ),
        Key::new("offload_optimizer.pin_memory", Flag, ZERO, "`pin_memory`."),
        Key::new("offload_optimizer.nvme_path", Text, ZERO, "`nvme_path`: without effect on what is predicted."),
        Key::new(
            "offload_optimizer.buffer_count",
            Count(Some((0, 1 << 16))),
            ZERO,
            "`buffer_count`: without effect but for disks, as all that follow but `ratio`.",
        ),
        Key::new("offload_optimizer.pipeline_read", Flag, ZERO, "`pipeline_read`."),
        Key::new("offload_optimizer.pipeline_write", Flag, ZERO, "`pipeline_write`."),
        Key::new("offload_optimizer.fast_init", Flag, ZERO, "`fast_init`: of what happens before the first step."),
        Key::new(
            "offload_optimizer.ratio",
            Number,
            ZERO,
            "`ratio`: the part of groups that are stepped on the host (ZeRO-3).",
        ),
        Key::new(
            "offload_param.device",
            Choice(&[Word("none"), Word("cpu"), Word("nvme")]),
            ZERO,
            "`none`, `cpu` or `nvme`.",
        ),
        Key::new("offload_param.pin_memory", Flag, ZERO, "`pin_memory`."),
        Key::new("offload_param.nvme_path", Text, ZERO, "`nvme_path`: without effect on what is predicted."),
        Key::new(
            "offload_param.buffer_count",
            Count(Some((0, 1 << 16))),
            ZERO,
            "`buffer_count`: without effect but for disks, as all that follow.",
        ),
        Key::new("offload_param.buffer_size", Count(Some((0, 1 << 40))), ZERO, "`buffer_size`, in elements."),
        Key::new("offload_param.max_in_cpu", Count(Some((0, 1 << 40))), ZERO, "`max_in_cpu`, in elements."),
        Key::new("aio.block_size", Count(Some((1, 1 << 40))), ZERO, "`block_size`, in bytes."),
        Key::new("aio.queue_depth", Count(None), ZERO, "`queue_depth`."),
        Key::new(
            "aio.intra_op_parallelism",
            Count(Some((1, 1024))),
            ZERO,
            "`intra_op_parallelism`: threads of a handle.",
        ),
        Key::new("aio.single_submit", Flag, ZERO, "`single_submit`."),
        Key::new("aio.overlap_events", Flag, ZERO, "`overlap_events`."),
        Key::new("aio.use_gds", Flag, ZERO, "`use_gds`: files go to the device directly."),
    ],
};
