//! Keys of other runtimes, each with what Megatron-Core has in its place.

use crate::scenario::foreign::Foreign;
use crate::scenario::registry::Runtime;

/// Tables that other runtimes read, the keys of each that this one reads too, and what to write instead of the others.
const TABLES: [(&str, &[&str], &str); 13] = [
    ("fsdp", &[], "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
    ("fsdp1", &[], "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
    ("compile", &[], "its fusions are keys of [megatron], such as bias_activation_fusion"),
    ("float8", &[], "write megatron.fp8 = \"delayed\", \"tensorwise\" or \"blockwise\""),
    ("loss", &[], "write megatron.cross_entropy_loss_fusion"),
    ("loop", &[], "write megatron.check_for_nan for the numbers that its loop reads back"),
    ("activation_checkpointing", &[], "write megatron.recompute = \"core_attn\", { uniform = 1 } or { block = 4 }"),
    (
        "framework",
        &["cublas", "launch_blocking", "device_max_connections", "persistent_cublas_workspace"],
        "write megatron.implementation = \"transformer_engine\" or \"local\", and its fusions",
    ),
    ("optimizer", &["clip_grad_norm"], "it is Adam in one kernel: remove the key, or see megatron.exp_avg_dtype"),
    ("attention", &["backend"], "write megatron.attention = \"flash\" or \"unfused\", or megatron.deterministic_mode"),
    ("tensor_parallel", &["sequence"], "the loss is always taken of split words: remove the key"),
    (
        "batch",
        &["sequence", "micro", "accumulation", "global", "global_tokens"],
        "gradients are reduced after the last micro-batch: remove the key",
    ),
    (
        "mesh",
        &["tp", "cp", "pp", "dp", "ep", "etp"],
        "write mesh.dp: replicas, of which megatron.distributed_optimizer shards states",
    ),
];

/// Where the key itself says more than its table.
const KEYS: [(&str, &str); 7] = [
    ("precision.autocast", "remove it: parameters are in precision.param, beside fp32 ones that are stepped"),
    ("precision.autocast_cache", "remove it: there is no autocast"),
    ("precision.storage", "write megatron.main_params_dtype for the parameters that are stepped"),
    ("precision.reduce", "write megatron.grad_reduce_in_fp32 = true or false"),
    ("precision.output", "remove it: the loss is computed in fp32"),
    ("precision.tf32", "remove it: matmuls are in precision.param, or in megatron.fp8"),
    ("framework.rope", "write megatron.rope_fusion"),
];

/// All of them, for a runtime that runs Megatron's modules.
pub(super) fn of(runtime: Runtime) -> Foreign {
    Foreign { runtime: runtime.written(), own: "megatron", reads: &["pipeline"], tables: &TABLES, keys: &KEYS }
}
