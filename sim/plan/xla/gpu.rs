//! What XLA does on NVIDIA GPUs that it does not on TPUs, and what its flags say of it.
//!
//! Read from XLA (openxla/xla@1ff3f7d7, `xla/service/collective_utils.h`, `xla/debug_options_flags.cc`) and from steps that jaxlib 0.7.2
//! compiled for H100 (`tests/oracles/xla-gpu.json`):
//!
//! - Matmuls are calls of cuBLAS: what they read and write lies in memory. A norm, a gate and a rotary embedding are kernels.
//! - Weights are cast to bf16 and gathered at each use, several in one all-gather up to a threshold. The next all-gather starts with the
//!   first matmul that reads the one before. In a loop over layers it does not cross from one turn to the next.
//! - Gradients of weights are reduce-scattered in bf16, then all-reduced over replicas, several in one collective up to a threshold.
//! - Layers that are written out keep their gradients in bf16. A loop adds them to a stack in fp32.
//! - The threads of the host issue kernels ahead of the device. A launch takes about 2 µs, so the host is never waited for: not simulated.

use std::ops::ControlFlow;

use crate::near::did_you_mean;

/// The combiners' thresholds where no flag sets them [B].
const COMBINED: u64 = (30 << 20) + 7;

/// What a step is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Backend {
    /// libtpu.
    Tpu,
    /// XLA:GPU, under these flags.
    Gpu(GpuFlags),
}

/// Flags of XLA:GPU (`XLA_FLAGS`), as far as they change what is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct GpuFlags {
    /// `xla_gpu_enable_latency_hiding_scheduler`: collectives overlap with matmuls.
    pub latency_hiding: bool,
    /// `xla_gpu_enable_pipelined_all_gather`: in a loop, weights of the next turn are gathered during this one.
    pub pipelined_all_gather: bool,
    /// `xla_gpu_enable_pipelined_reduce_scatter`, and of all-reduces where no weight is sharded: the next turn waits for the reduction.
    pub pipelined_reduction: bool,
    /// `xla_gpu_all_gather_combine_threshold_bytes`, of what is gathered.
    pub all_gather: u64,
    /// `xla_gpu_reduce_scatter_combine_threshold_bytes`, of what each rank keeps.
    pub reduce_scatter: u64,
    /// `xla_gpu_all_reduce_combine_threshold_bytes`.
    pub all_reduce: u64,
}

/// What a flag sets.
enum Sets {
    Switch(fn(&mut GpuFlags, bool)),
    Bytes(fn(&mut GpuFlags, u64)),
    /// It changes nothing that is simulated, and why.
    Nothing,
}

/// Flags that are known, without their dashes. Those that set nothing choose kernels, compile faster, or dump; or are in every measured
/// recipe.
const KNOWN: [(&str, Sets); 30] = [
    ("xla_gpu_enable_latency_hiding_scheduler", Sets::Switch(|flags, on| flags.latency_hiding = on)),
    ("xla_gpu_enable_pipelined_all_gather", Sets::Switch(|flags, on| flags.pipelined_all_gather = on)),
    ("xla_gpu_enable_pipelined_reduce_scatter", Sets::Switch(|flags, on| flags.pipelined_reduction = on)),
    ("xla_gpu_all_gather_combine_threshold_bytes", Sets::Bytes(|flags, bytes| flags.all_gather = bytes)),
    ("xla_gpu_reduce_scatter_combine_threshold_bytes", Sets::Bytes(|flags, bytes| flags.reduce_scatter = bytes)),
    ("xla_gpu_all_reduce_combine_threshold_bytes", Sets::Bytes(|flags, bytes| flags.all_reduce = bytes)),
    // As newer releases call them.
    ("xla_gpu_pipeline_all_gather", Sets::Switch(|flags, on| flags.pipelined_all_gather = on)),
    ("xla_gpu_pipeline_reduce_scatter", Sets::Switch(|flags, on| flags.pipelined_reduction = on)),
    ("xla_gpu_pipeline_all_reduce", Sets::Nothing),
    ("xla_dump_to", Sets::Nothing),
    ("xla_gpu_enable_pipelined_all_reduce", Sets::Nothing),
    ("xla_gpu_enable_pipelined_collectives", Sets::Nothing),
    ("xla_gpu_enable_while_loop_double_buffering", Sets::Nothing),
    ("xla_gpu_enable_all_gather_combine_by_dim", Sets::Nothing),
    ("xla_gpu_enable_reduce_scatter_combine_by_dim", Sets::Nothing),
    ("xla_gpu_enable_async_all_gather", Sets::Nothing),
    ("xla_gpu_enable_async_all_reduce", Sets::Nothing),
    ("xla_gpu_enable_async_reduce_scatter", Sets::Nothing),
    ("xla_gpu_enable_async_collectives", Sets::Nothing),
    ("xla_gpu_enable_highest_priority_async_stream", Sets::Nothing),
    ("xla_gpu_enable_triton_gemm", Sets::Nothing),
    ("xla_gpu_enable_triton_softmax_fusion", Sets::Nothing),
    ("xla_gpu_enable_cudnn_fmha", Sets::Nothing),
    ("xla_gpu_enable_custom_fusions", Sets::Nothing),
    ("xla_gpu_enable_command_buffer", Sets::Nothing),
    ("xla_gpu_graph_level", Sets::Nothing),
    ("xla_gpu_simplify_all_fp_conversions", Sets::Nothing),
    ("xla_gpu_autotune_level", Sets::Nothing),
    ("xla_allow_excess_precision", Sets::Nothing),
    ("xla_disable_hlo_passes", Sets::Nothing),
];

/// What is wrong with a flag, and what to write instead.
pub struct Wrong {
    /// Its place in the list.
    pub at: usize,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl GpuFlags {
    /// With no flag set. jaxlib 0.7.2 schedules a step alike with the latency-hiding scheduler's flag on and off.
    pub const DEFAULT: GpuFlags = GpuFlags {
        latency_hiding: true,
        pipelined_all_gather: false,
        pipelined_reduction: false,
        all_gather: COMBINED,
        reduce_scatter: COMBINED,
        all_reduce: COMBINED,
    };

    /// The flags of a list such as `xla_gpu_enable_pipelined_all_gather=true`, with or without dashes; or what is wrong with one.
    pub fn of(list: &[&str]) -> Result<GpuFlags, Wrong> {
        let mut flags = GpuFlags::DEFAULT;
        for (at, written) in list.iter().enumerate() {
            if let ControlFlow::Break((problem, remedy)) = flags.set(written) {
                return Err(Wrong { at, problem, remedy });
            }
        }
        Ok(flags)
    }

    fn set(&mut self, written: &str) -> ControlFlow<(String, String)> {
        let bare = written.trim_start_matches('-');
        let (name, value) = bare.split_once('=').unwrap_or((bare, "true"));
        let Some((_, sets)) = KNOWN.iter().find(|(known, _)| *known == name) else {
            let names = KNOWN.map(|(known, _)| known);
            let hint = did_you_mean(name, names);
            let problem = format!("{name:?} is no flag of XLA:GPU that is known here{hint}");
            return ControlFlow::Break((problem, format!("remove it, or write some of: {}", names.join(", "))));
        };
        match sets {
            Sets::Nothing => {}
            Sets::Switch(set) => match value.to_ascii_lowercase().as_str() {
                "true" | "1" | "on" => set(self, true),
                "false" | "0" | "off" => set(self, false),
                _ => {
                    let problem = format!("{name} is {value:?}, and true or false was expected");
                    return ControlFlow::Break((problem, format!("write {name}=true")));
                }
            },
            Sets::Bytes(set) => match value.parse::<u64>() {
                Ok(bytes) if bytes <= 1 << 40 => set(self, bytes),
                _ => {
                    let problem = format!("{name} is {value:?}, and a number of bytes up to 2^40 was expected");
                    return ControlFlow::Break((problem, format!("write {name}=134217728")));
                }
            },
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_a_script_writes_them() {
        let list = [
            "--xla_gpu_enable_latency_hiding_scheduler=false",
            "xla_gpu_all_gather_combine_threshold_bytes=134217728",
            "--xla_gpu_enable_pipelined_all_gather",
            "--xla_gpu_graph_level=0",
        ];
        let flags = GpuFlags::of(&list).unwrap_or(GpuFlags::DEFAULT);
        let all_gather = 134_217_728;
        let expected = GpuFlags { latency_hiding: false, pipelined_all_gather: true, all_gather, ..GpuFlags::DEFAULT };
        assert_eq!(flags, expected);
    }

    #[test]
    fn a_wrong_flag_is_named_with_its_place_and_what_to_write() {
        for (list, at, words) in [
            (&["xla_gpu_graph_level=0", "xla_gpu_enable_pipelined_all_gathers=true"][..], 1, "did you mean"),
            (&["xla_gpu_all_reduce_combine_threshold_bytes=1GB"], 0, "a number of bytes"),
            (&["xla_gpu_enable_latency_hiding_scheduler=maybe"], 0, "true or false"),
            (&["CF_FOR_ALL_GATHER"], 0, "no flag of XLA:GPU"),
        ] {
            let wrong = GpuFlags::of(list).expect_err("it is wrong");
            assert_eq!(wrong.at, at);
            assert!(wrong.problem.contains(words), "{}", wrong.problem);
            assert!(!wrong.remedy.is_empty());
        }
    }
}
