//! Groups of the compiler's flags by the names of MaxText's `benchmarks/xla_flags_library.py` (AI-Hypercomputer/maxtext@e591f30cb).
//!
//! Left out is `DEBUG_LOGS`, which sets no flag of the compiler. `CUSTOM_VMEM_LIMIT_FLAG` takes a number, which a scenario writes as
//! the flag itself.

/// A flag, without dashes, and its value.
pub type Flag = (&'static str, &'static str);

/// All groups.
pub const GROUPS: [(&str, &[Flag]); 22] = [
    ("DENSE_VMEM_LIMIT_FLAG", &[("xla_tpu_scoped_vmem_limit_kib", "98304")]),
    ("MOE_VMEM_LIMIT_FLAG", &[("xla_tpu_scoped_vmem_limit_kib", "81920")]),
    ("CUSTOM_VMEM_LIMIT_FLAG", &[]),
    (
        "CF_FOR_ALL_GATHER",
        &[
            ("xla_tpu_enable_async_collective_fusion", "true"),
            ("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "true"),
            ("xla_tpu_enable_async_collective_fusion_multiple_steps", "true"),
            ("xla_tpu_overlap_compute_collective_tc", "true"),
            ("xla_enable_async_all_gather", "true"),
        ],
    ),
    (
        "CF_FOR_ALL_REDUCE",
        &[
            ("xla_tpu_enable_async_collective_fusion", "true"),
            ("xla_tpu_enable_async_collective_fusion_fuse_all_reduce", "true"),
            ("xla_tpu_enable_async_collective_fusion_multiple_steps", "true"),
            ("xla_tpu_overlap_compute_collective_tc", "true"),
            ("xla_enable_async_all_reduce", "true"),
        ],
    ),
    (
        "CF_FOR_ALL_REDUCE_AND_ALL_GATHER",
        &[
            ("xla_enable_async_all_reduce", "true"),
            ("xla_enable_async_all_gather", "true"),
            ("xla_tpu_overlap_compute_collective_tc", "true"),
            ("xla_tpu_enable_async_collective_fusion", "true"),
            ("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "true"),
            ("xla_tpu_enable_async_collective_fusion_multiple_steps", "true"),
        ],
    ),
    (
        "ENABLE_SPARSECORE_OFFLOADING_BASE_FLAGS",
        &[
            ("xla_tpu_use_tc_device_shape_on_sc", "true"),
            ("xla_sc_enable_instruction_fusion", "false"),
            ("xla_sc_disjoint_spmem", "false"),
            ("xla_sc_disable_megacore_partitioning", "true"),
        ],
    ),
    (
        "ENABLE_SPARSECORE_OFFLOADING_FOR_RS_AG_AR",
        &[
            ("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "false"),
            ("xla_tpu_enable_async_collective_fusion_fuse_all_reduce", "false"),
            ("xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter", "false"),
            ("xla_tpu_enable_sparse_core_collective_offload_all_gather", "true"),
            ("xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", "true"),
            ("xla_tpu_enable_sparse_core_collective_offload_all_reduce", "true"),
            ("xla_tpu_enable_all_gather_offload_tracing", "true"),
            ("xla_tpu_enable_reduce_scatter_offload_tracing", "true"),
            ("xla_tpu_enable_all_reduce_offload_tracing", "true"),
            ("xla_tpu_use_tc_device_shape_on_sc", "true"),
            ("xla_sc_enable_instruction_fusion", "false"),
            ("xla_sc_disjoint_spmem", "false"),
            ("xla_sc_disable_megacore_partitioning", "true"),
        ],
    ),
    (
        "ENABLE_SPARSECORE_OFFLOADING_FOR_REDUCE_SCATTER",
        &[
            ("xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter", "false"),
            ("xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", "true"),
            ("xla_tpu_enable_reduce_scatter_offload_tracing", "true"),
            ("xla_tpu_use_tc_device_shape_on_sc", "true"),
            ("xla_sc_enable_instruction_fusion", "false"),
            ("xla_sc_disjoint_spmem", "false"),
            ("xla_sc_disable_megacore_partitioning", "true"),
        ],
    ),
    (
        "ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_GATHER",
        &[
            ("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "false"),
            ("xla_tpu_enable_sparse_core_collective_offload_all_gather", "true"),
            ("xla_tpu_enable_all_gather_offload_tracing", "true"),
            ("xla_tpu_use_tc_device_shape_on_sc", "true"),
            ("xla_sc_enable_instruction_fusion", "false"),
            ("xla_sc_disjoint_spmem", "false"),
            ("xla_sc_disable_megacore_partitioning", "true"),
        ],
    ),
    (
        "ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_REDUCE",
        &[
            ("xla_tpu_enable_async_collective_fusion_fuse_all_reduce", "false"),
            ("xla_tpu_enable_sparse_core_collective_offload_all_reduce", "true"),
            ("xla_tpu_enable_all_reduce_offload_tracing", "true"),
            ("xla_tpu_use_tc_device_shape_on_sc", "true"),
            ("xla_sc_enable_instruction_fusion", "false"),
            ("xla_sc_disjoint_spmem", "false"),
            ("xla_sc_disable_megacore_partitioning", "true"),
        ],
    ),
    (
        "LAYOUT_FOR_ALL_REDUCE_SCATTER",
        &[
            ("xla_tpu_use_minor_sharding_for_major_trivial_input", "true"),
            ("xla_tpu_relayout_group_size_threshold_for_reduce_scatter", "1"),
            ("xla_tpu_assign_all_reduce_scatter_layout", "true"),
        ],
    ),
    (
        "REDUCE_SCATTER_FUSION",
        &[
            ("xla_tpu_use_minor_sharding_for_major_trivial_input", "true"),
            ("xla_tpu_relayout_group_size_threshold_for_reduce_scatter", "1"),
        ],
    ),
    (
        "DATA_PARALLEL_OVERLAP",
        &[
            ("xla_tpu_enable_data_parallel_all_reduce_opt", "true"),
            ("xla_tpu_data_parallel_opt_different_sized_ops", "true"),
        ],
    ),
    ("ENHANCED_LAUNCH_BARRIER", &[("xla_tpu_use_enhanced_launch_barrier", "true")]),
    (
        "HOST_OFFLOAD_FLAGS",
        &[
            ("xla_tpu_enable_all_experimental_scheduler_features", "true"),
            ("xla_tpu_enable_scheduler_memory_pressure_tracking", "true"),
            ("xla_tpu_host_transfer_overlap_limit", "24"),
            ("xla_tpu_aggressive_opt_barrier_removal", "ENABLED"),
            ("xla_lhs_prioritize_async_depth_over_stall", "ENABLED"),
            ("xla_tpu_enable_ag_backward_pipelining", "true"),
            ("xla_should_allow_loop_variant_parameter_in_chain", "ENABLED"),
            ("xla_should_add_loop_invariant_op_in_chain", "ENABLED"),
            ("xla_max_concurrent_host_send_recv", "100"),
            ("xla_tpu_scheduler_percent_shared_memory_limit", "100"),
            ("xla_latency_hiding_scheduler_rerun", "2"),
        ],
    ),
    ("PIPELINING_FLAGS", &[("xla_tpu_iova_dma_chunk_size_bytes", "16777216")]),
    ("DISABLE_BUNDLE_AWARE_COST_MODEL", &[("xla_tpu_use_bundle_aware_cost_model_for_fusions", "false")]),
    (
        "SDC_CHECKER",
        &[
            ("xla_tpu_enable_sdc_checker", "true"),
            ("xla_tpu_sdc_check_halt_on_detection", "true"),
            ("xla_tpu_sdc_replicate_llo", "true"),
            ("xla_tpu_sdc_check_repeat_count", "5"),
        ],
    ),
    ("DISABLE_COLLECTIVE_MATMUL", &[("xla_jf_spmd_threshold_for_windowed_einsum_mib", "1000000")]),
    ("DISABLE_MEGACORE_FUSION_ALLOW_AGS", &[("xla_tpu_megacore_fusion_allow_ags", "false")]),
    ("ENABLE_ASYNC_COLLECTIVE_PERMUTE", &[("xla_enable_async_collective_permute", "true")]),
];
