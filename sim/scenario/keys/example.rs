//! A value to write for each key, for the reference and for `windtunnel explain`.
//!
//! A flag's example is the value that is not its default, and a choice's is the first word that is not its default. Numbers, names and
//! lists are listed here. To add a key of such a kind: a line in the list.

use super::row::{Choice, Kind};
use super::{Key, presets};

/// Keys and values, in the order of the tables.
const LISTED: [(&str, &str); 155] = [
    ("description", "\"Llama-3.1-8B on one node\""),
    ("runtime", "\"fsdp2\""),
    ("topology.name", "\"h100-sxm-80gb\""),
    ("topology.nodes", "4"),
    ("topology.slice", "\"4x4\""),
    ("topology.slices", "2"),
    ("topology.chips", "1"),
    ("topology.profile", "\"h100-sxm-80gb\""),
    ("model.name", "\"llama-3.1-8b\""),
    ("model.huggingface", "\"config.json\""),
    ("model.config", "{ num_hidden_layers = 16 }"),
    ("model.layers", "16"),
    ("model.hidden", "4096"),
    ("model.heads", "32"),
    ("model.kv_heads", "8"),
    ("model.ffn", "14336"),
    ("model.vocab", "128256"),
    ("model.positions", "8192"),
    ("mesh.dp_shard", "8"),
    ("mesh.dp_replicate", "4"),
    ("mesh.tp", "8"),
    ("mesh.cp", "2"),
    ("mesh.pp", "4"),
    ("mesh.dp", "8"),
    ("mesh.ep", "8"),
    ("mesh.etp", "2"),
    ("mesh.data", "2"),
    ("mesh.fsdp", "16"),
    ("mesh.fsdp_transpose", "2"),
    ("mesh.context", "4"),
    ("mesh.expert", "8"),
    ("mesh.tensor", "4"),
    ("mesh.pipeline", "4"),
    ("mesh.dcn_pipeline", "2"),
    ("mesh.dcn_data", "2"),
    ("mesh.dcn_fsdp", "2"),
    ("mesh.dcn_fsdp_transpose", "2"),
    ("mesh.dcn_context", "2"),
    ("mesh.dcn_expert", "2"),
    ("mesh.dcn_tensor", "2"),
    ("pipeline.schedule", "\"Interleaved1F1B\""),
    ("pipeline.virtual_stages", "2"),
    ("pipeline.layers", "[8, 8, 8, 8]"),
    ("pipeline.layers_per_stage", "4"),
    ("pipeline.first_stage_less_layers", "1"),
    ("pipeline.last_stage_less_layers", "1"),
    ("batch.sequence", "8192"),
    ("batch.micro", "2"),
    ("batch.per_device_batch_size", "1.5"),
    ("batch.accumulation", "4"),
    ("batch.global", "512"),
    ("batch.global_tokens", "4194304"),
    ("megatron.cp_comm_type", "\"a2a\""),
    ("megatron.hierarchical_context_parallel_sizes", "[8, 2]"),
    ("megatron.moe_token_dispatcher_type", "\"alltoall\""),
    ("megatron.moe_expert_capacity_factor", "1.25"),
    ("megatron.get_batch", "\"each_rank\""),
    ("megatron.bucket_size", "40000000"),
    ("megatron.suggested_communication_unit_size", "400000000"),
    ("megatron.mtp_num_layers", "1"),
    ("megatron.make_vocab_size_divisible_by", "64"),
    ("internevo.zero1", "8"),
    ("internevo.reduce_bucket_size", "268435456"),
    ("nanotron.zero_stage", "1"),
    ("nanotron.ddp_bucket_cap_mb", "100"),
    ("xla.python_client_mem_fraction", "0.9"),
    ("xla.remat_policy", "\"minimal\""),
    ("xla.sa_block_size", "1024"),
    ("xla.flags", "[\"CF_FOR_ALL_GATHER\"]"),
    ("xla.num_vocab_tiling", "4"),
    ("xla.capacity_factor", "1.25"),
    ("xla.num_layers_per_pipeline_stage", "2"),
    ("xla.num_pipeline_repeats", "2"),
    ("xla.num_pipeline_microbatches", "8"),
    ("xla.pipeline_parallel_layers", "32"),
    ("xla.steps", "1000"),
    ("xla.shapes", "2"),
    ("xla.host_syncs_per_step", "1"),
    ("zero.stage", "3"),
    ("zero.reduce_bucket_size", "200000000"),
    ("zero.allgather_bucket_size", "200000000"),
    ("zero.stage3_prefetch_bucket_size", "100000000"),
    ("zero.stage3_param_persistence_threshold", "1000000"),
    ("zero.stage3_max_live_parameters", "500000000"),
    ("zero.stage3_max_reuse_distance", "500000000"),
    ("zero.sub_group_size", "500000000"),
    ("zero.zero_hpz_partition_size", "8"),
    ("zero.offload_optimizer.nvme_path", "\"/local_nvme\""),
    ("zero.offload_optimizer.buffer_count", "4"),
    ("zero.offload_optimizer.ratio", "0.3"),
    ("zero.offload_param.nvme_path", "\"/local_nvme\""),
    ("zero.offload_param.buffer_count", "5"),
    ("zero.offload_param.buffer_size", "100000000"),
    ("zero.offload_param.max_in_cpu", "1000000000"),
    ("zero.aio.block_size", "1048576"),
    ("zero.aio.queue_depth", "32"),
    ("zero.aio.intra_op_parallelism", "4"),
    ("mesh.logical_axis_rules", "[[\"exp\", \"expert\"], [\"embed\", [\"fsdp\", \"context\"]]]"),
    ("batch.documents", "{ length = 512 }"),
    ("batch.packing", "\"cut\""),
    ("fsdp.wrap", "\"torchtitan\""),
    ("fsdp.reshard_after_forward", "8"),
    ("fsdp.ends", "[\"embedding\", \"norm_and_head\"]"),
    ("fsdp.head_reshard_after_forward", "true"),
    ("fsdp.root_reshard_after_forward", "true"),
    ("fsdp.reshard_after_backward", "\"last_micro_batch\""),
    ("fsdp.override", "[{ blocks = [0, 8], reshard_after_forward = false }]"),
    ("fsdp.forward_prefetch", "1"),
    ("fsdp.backward_prefetch", "1"),
    ("fsdp.shard_dim_1", "[\"w2\"]"),
    ("fsdp.reduce_scatter_buffers", "2"),
    ("ddp.bucket_cap_mb", "100"),
    ("trained.freeze", "[\"embedding\"]"),
    ("trained.last_layers", "4"),
    ("lora.rank", "16"),
    ("lora.alpha", "32.0"),
    ("lora.dropout", "0.05"),
    ("lora.modules", "[\"all-linear\"]"),
    ("activation_checkpointing.policy", "{ every = 2 }"),
    ("loss.chunks", "8"),
    ("loss.words", "32768"),
    ("loss.keep_logits", "\"backward\""),
    ("optimizer.name", "\"sgd\""),
    ("optimizer.implementation", "\"foreach\""),
    ("optimizer.weight_decay", "0.1"),
    ("optimizer.momentum", "0.9"),
    ("loop.train_metrics", "1"),
    ("loop.host_syncs_per_step", "1"),
    ("framework.release", "\"torchtitan 0.3.0\""),
    ("framework.unknown_release", "\"0.3.1\""),
    ("framework.cublas", "\"12.8\""),
    ("framework.device_max_connections", "8"),
    ("ranks.speed", "\"gemm\""),
    ("ranks.spread", "0.02"),
    ("ranks.kernel_jitter", "0.01"),
    ("ranks.host_jitter", "0.05"),
    ("ranks.slow", "{ rank = 0, pace = 0.9 }"),
    ("ranks.slow_links", "{ rank = 0, pace = 0.5 }"),
    ("ranks.seed", "7"),
    ("ranks.draws", "64"),
    ("failures.rates", "\"llama3-h100\""),
    ("failures.draws", "400"),
    ("failures.seed", "1"),
    ("measured.step_time", "\"1.5 s\""),
    ("measured.tokens_per_second_per_chip", "7000.0"),
    ("measured.counted_tokens_per_step", "524288"),
    ("measured.mfu", "0.41"),
    ("measured.mfu_convention", "\"6N + 12LHS\""),
    ("measured.source", "\"our cluster, run 17\""),
    ("measured.date", "\"2026-11-26\""),
    ("measured.commit", "\"9dec370\""),
    ("measured.lane", "\"fsdp2\""),
    ("measured.hardware", "\"H100\""),
    ("measured.grade", "\"A\""),
    ("measured.family", "\"llama-3.1, our cluster\""),
];

/// A value of a key, in TOML.
pub fn example(path: &str, key: &Key) -> String {
    if let Some((_, value)) = LISTED.iter().find(|(listed, _)| *listed == path) {
        return (*value).to_owned();
    }
    let is_default = |value: &str| presets::presets().any(|preset| preset.key == path && preset.value == value);
    match key.kind {
        Kind::Flag => (!is_default("true")).to_string(),
        Kind::Quantity(example) => quoted(example),
        Kind::List(words) => format!("[{}]", words.first().copied().map(quoted).unwrap_or_default()),
        Kind::Choice(choices) => {
            let words = choices.iter().filter_map(|choice| match choice {
                Choice::Word(word) => Some(quoted(word)),
                Choice::With(..) => None,
            });
            let mut other = words.clone().filter(|word| !is_default(word) && word != "\"none\"");
            other.next().or_else(|| words.clone().next()).unwrap_or_default()
        }
        Kind::Other(values) => values.split(',').next().unwrap_or_default().to_owned(),
        Kind::Count(least) => least.map_or(1, |(least, _)| least).to_string(),
        Kind::Number => "1.0".to_owned(),
        Kind::Text => "\"\"".to_owned(),
    }
}

fn quoted(word: &str) -> String {
    format!("\"{word}\"")
}

#[cfg(test)]
mod tests {
    use super::super::TABLES;
    use super::{Kind, LISTED};

    #[test]
    fn every_number_and_name_has_an_example_of_its_own_and_the_list_has_nothing_else() {
        let paths: Vec<String> = TABLES.iter().flat_map(|of| of.keys.iter().map(|key| of.path(key))).collect();
        let strange: Vec<_> = LISTED.iter().filter(|(path, _)| !paths.iter().any(|known| known == path)).collect();
        assert!(strange.is_empty(), "no keys: {strange:?}");
        for (of, key) in TABLES.iter().flat_map(|of| of.keys.iter().map(move |key| (of, key))) {
            let needs = matches!(key.kind, Kind::Count(_) | Kind::Number | Kind::Text | Kind::List([]));
            let listed = LISTED.iter().filter(|(path, _)| *path == of.path(key)).count();
            assert!(listed == 1 || !needs && listed == 0, "{}: {listed} examples", of.path(key));
        }
    }
}
