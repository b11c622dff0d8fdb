//! A scenario's groups of flags as the compiler's flags.
//!
//! Names and values are those of MaxText's `benchmarks/xla_flags_library.py` (AI-Hypercomputer/maxtext@e591f30cb). A scenario
//! keeps what they do, not what they are, so they are read from the file.

use std::collections::BTreeMap;

/// One flag of the compiler's: its name, without dashes, and its value.
type Flag = (&'static str, &'static str);

const GATHER: &[Flag] = &[
    ("xla_tpu_enable_async_collective_fusion", "true"),
    ("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "true"),
    ("xla_tpu_enable_async_collective_fusion_multiple_steps", "true"),
    ("xla_tpu_overlap_compute_collective_tc", "true"),
    ("xla_enable_async_all_gather", "true"),
];
/// What every exchange on SparseCores takes.
const SPARSE: &[Flag] = &[
    ("xla_tpu_use_tc_device_shape_on_sc", "true"),
    ("xla_sc_enable_instruction_fusion", "false"),
    ("xla_sc_disjoint_spmem", "false"),
    ("xla_sc_disable_megacore_partitioning", "true"),
];
const SPARSE_REDUCE: &[Flag] = &[
    ("xla_tpu_enable_async_collective_fusion_fuse_all_reduce", "false"),
    ("xla_tpu_enable_sparse_core_collective_offload_all_reduce", "true"),
    ("xla_tpu_enable_all_reduce_offload_tracing", "true"),
];
const SPARSE_GATHER: &[Flag] = &[
    ("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "false"),
    ("xla_tpu_enable_sparse_core_collective_offload_all_gather", "true"),
    ("xla_tpu_enable_all_gather_offload_tracing", "true"),
];
const SPARSE_SCATTER: &[Flag] = &[
    ("xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter", "false"),
    ("xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", "true"),
    ("xla_tpu_enable_reduce_scatter_offload_tracing", "true"),
];
const LAYOUT: &[Flag] = &[
    ("xla_tpu_use_minor_sharding_for_major_trivial_input", "true"),
    ("xla_tpu_relayout_group_size_threshold_for_reduce_scatter", "1"),
    ("xla_tpu_assign_all_reduce_scatter_layout", "true"),
];
const DATA_PARALLEL: &[Flag] = &[
    ("xla_tpu_enable_data_parallel_all_reduce_opt", "true"),
    ("xla_tpu_data_parallel_opt_different_sized_ops", "true"),
];
const HOST: &[Flag] = &[
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
];

/// Groups by their names; `CUSTOM_VMEM_LIMIT_FLAG` takes a number that a scenario does not give.
const GROUPS: [(&str, &[&[Flag]]); 12] = [
    ("CF_FOR_ALL_GATHER", &[GATHER]),
    ("DATA_PARALLEL_OVERLAP", &[DATA_PARALLEL]),
    ("DISABLE_COLLECTIVE_MATMUL", &[&[("xla_jf_spmd_threshold_for_windowed_einsum_mib", "1000000")]]),
    ("LAYOUT_FOR_ALL_REDUCE_SCATTER", &[LAYOUT]),
    ("ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_REDUCE", &[SPARSE_REDUCE, SPARSE]),
    ("ENABLE_SPARSECORE_OFFLOADING_FOR_ALL_GATHER", &[SPARSE_GATHER, SPARSE]),
    ("ENABLE_SPARSECORE_OFFLOADING_FOR_REDUCE_SCATTER", &[SPARSE_SCATTER, SPARSE]),
    ("ENABLE_SPARSECORE_OFFLOADING_FOR_RS_AG_AR", &[SPARSE_REDUCE, SPARSE_GATHER, SPARSE_SCATTER, SPARSE]),
    ("ENABLE_ASYNC_COLLECTIVE_PERMUTE", &[&[("xla_enable_async_collective_permute", "true")]]),
    ("DENSE_VMEM_LIMIT_FLAG", &[&[("xla_tpu_scoped_vmem_limit_kib", "98304")]]),
    ("MOE_VMEM_LIMIT_FLAG", &[&[("xla_tpu_scoped_vmem_limit_kib", "81920")]]),
    ("HOST_OFFLOAD_FLAGS", &[HOST]),
];

/// The compiler's flags of a scenario's text, and the names of groups that have none here.
pub fn of(scenario: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let table: toml::Table = scenario.parse().unwrap_or_default();
    let list = table.get("xla").and_then(|xla| xla.get("flags")).and_then(toml::Value::as_array);
    let (mut flags, mut unknown) = (BTreeMap::new(), vec![]);
    for name in list.into_iter().flatten().filter_map(toml::Value::as_str) {
        match GROUPS.iter().find(|(known, _)| *known == name) {
            Some((_, lists)) => flags
                .extend(lists.iter().copied().flatten().map(|(flag, value)| ((*flag).to_owned(), (*value).to_owned()))),
            None => unknown.push(name.to_owned()),
        }
    }
    (flags, unknown)
}

#[cfg(test)]
mod tests {
    use windtunnel::runtime::spmd::Flags;

    use super::*;

    #[test]
    fn every_group_that_a_scenario_may_name_has_its_flags_but_the_one_with_a_number_of_its_own() {
        let lacking: Vec<&str> = Flags::GROUPS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| !GROUPS.iter().any(|(known, _)| known == name))
            .collect();
        assert_eq!(lacking, ["CUSTOM_VMEM_LIMIT_FLAG"]);
    }

    #[test]
    fn a_scenario_without_flags_has_the_compiler_s_defaults() {
        assert_eq!(of("runtime = \"xla\"\n[xla]\nflags = []\n"), (BTreeMap::new(), vec![]));
        assert_eq!(of("runtime = \"xla\"\n"), (BTreeMap::new(), vec![]));
    }
}
