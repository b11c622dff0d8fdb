//! Keys of other runtimes, each with what Megatron-Core has in its place.

use toml::Spanned;
use toml::de::DeTable;

use crate::scenario::error::ScenarioError;
use crate::scenario::understood::Reader;

/// Tables that other runtimes read, the keys of each that this one reads too, and what to write instead of the others.
const TABLES: [(&str, &[&str], &str); 13] = [
    ("fsdp", &[], "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
    ("fsdp1", &[], "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
    ("compile", &[], "its fusions are keys of [megatron], such as bias_activation_fusion"),
    ("float8", &[], "write megatron.fp8 = \"delayed\", \"tensorwise\" or \"blockwise\""),
    ("loss", &[], "write megatron.cross_entropy_loss_fusion"),
    ("loop", &[], "write megatron.check_for_nan for the numbers that its loop reads back"),
    ("activation_checkpointing", &[], "write megatron.recompute = \"core_attn\", { uniform = 1 } or { block = 4 }"),
    ("framework", &["cublas"], "write megatron.implementation = \"transformer_engine\" or \"local\", and its fusions"),
    ("optimizer", &["clip_grad_norm"], "it is Adam in one kernel: remove the key, or see megatron.exp_avg_dtype"),
    ("attention", &["backend"], "write megatron.attention = \"flash\" or \"unfused\""),
    ("tensor_parallel", &["sequence"], "the loss is always taken of split words: remove the key"),
    (
        "batch",
        &["sequence", "micro", "accumulation"],
        "gradients are reduced after the last micro-batch: remove the key",
    ),
    (
        "mesh",
        &["tp", "cp", "pp", "dp"],
        "write mesh.dp: replicas, of which megatron.distributed_optimizer shards states",
    ),
];

/// Where the key itself says more than its table.
const KEYS: [(&str, &str); 5] = [
    ("precision.storage", "write megatron.main_params_dtype for the parameters that are stepped"),
    ("precision.reduce", "write megatron.grad_reduce_in_fp32 = true or false"),
    ("precision.output", "remove it: the loss is computed in fp32"),
    ("precision.tf32", "remove it: matmuls are in precision.param, or in megatron.fp8"),
    ("framework.rope", "write megatron.rope_fusion"),
];

/// Refuses the first that the file has.
pub(super) fn check(reader: &Reader<'_>) -> Result<(), ScenarioError> {
    // The text has been read once, so it is TOML.
    let Ok(file) = DeTable::parse(reader.text) else { return Ok(()) };
    for (table, value) in file.get_ref() {
        let name = table.get_ref().as_ref();
        let rule = TABLES.iter().find(|(known, ..)| *known == name);
        if let Some((.., instead)) = rule.filter(|(_, keys, _)| keys.is_empty()) {
            return Err(refuse(reader, table.span(), &format!("[{name}] means"), instead));
        }
        for key in value.get_ref().as_table().into_iter().flat_map(DeTable::keys) {
            let full = format!("{name}.{}", key.get_ref());
            let own = KEYS.iter().find(|(known, _)| *known == full).map(|(_, instead)| instead);
            let other = rule.filter(|(_, keys, _)| !keys.contains(&key.get_ref().as_ref()));
            if let Some(instead) = own.or(other.map(|(.., instead)| instead)) {
                return Err(refuse(reader, key.span(), &format!("{full} means"), instead));
            }
        }
    }
    Ok(())
}

fn refuse(reader: &Reader<'_>, span: std::ops::Range<usize>, subject: &str, instead: &str) -> ScenarioError {
    reader.plan(&Spanned::new(span, ()), format!("{subject} nothing under runtime = \"megatron\""), instead)
}
