//! Values to try for every key that a scenario may have; what the reader says of its keys to whoever writes one that there is not,
//! and what it expects to whoever writes a word.

use toml::{Table, Value};
use windtunnel::scenario::Scenario;
use windtunnel::scenario::keys::{Choice, Kind, TABLES};

use crate::make::{FILE, TINY};

/// A word that no key takes and no key is called.
pub const WORD: &str = "zzz";

/// Values that take no word of a list: names, sizes with units, tables.
const OTHERS: [(&str, &[&str]); 67] = [
    ("activation_checkpointing.policy", &["'none'", "'full'", "'selective_op'", "{ every = 2 }", "{ first = 1 }"]),
    (
        "batch.documents",
        &[
            "{ length = 16 }",
            "{ lengths = [{ length = 8, share = 0.9 }, { length = 100, share = 0.1 }] }",
            "{ lognormal = { mean = 30.0, sigma = 0.8 } }",
            "{ squares = 2000 }",
        ],
    ),
    ("batch.global", &["8", "16", "32", "64"]),
    ("batch.global_tokens", &["1024", "4096", "8192", "32768", "65536"]),
    ("checkpoint.every", &["'best'", "'30 min'", "500"]),
    ("checkpoint.load_bandwidth", &["'1 GB/s'", "'2 GB/s'"]),
    ("checkpoint.storage_bandwidth", &["'1 GB/s'", "'2 GB/s'"]),
    ("failures.detection", &["'1 min'", "'2 min'"]),
    ("failures.mean_time_between", &["'3 h'", "'4 h'"]),
    ("failures.rates", &["'opt-a100'", "'tpu-v4'"]),
    ("failures.recompile", &["'1 min'", "'2 min'"]),
    ("failures.repair", &["'1 d'", "'2 d'"]),
    ("failures.replacement", &["'1 min'", "'2 min'"]),
    ("failures.restart", &["'1 min'", "'2 min'"]),
    ("failures.spares", &["'enough'", "'some'"]),
    ("framework.cublas", &["'13.0'", "'12.6'", "'12.4'"]),
    ("framework.device_max_connections", &["1", "8"]),
    ("framework.unknown_release", &["'0.3.1'", "'0.4.0'"]),
    ("framework.not_simulated", &["[]", "['validation.enable = true: validation runs between steps']"]),
    ("framework.release", &["'torchtitan 0.3.0'", "'torchtitan 0.2.2'", "'transformers 5.23'"]),
    ("fsdp.ends", &["['head']", "['embedding', 'head']", "[]"]),
    ("fsdp.head_reshard_after_forward", &["true", "false", "2"]),
    (
        "fsdp.override",
        &[
            "[{ blocks = [0, 2], reshard_after_forward = false }]",
            "[{ blocks = [0, 2], reshard_after_forward = true }]",
        ],
    ),
    ("fsdp.reshard_after_backward", &["true", "'last_micro_batch'"]),
    ("fsdp.reshard_after_forward", &["true", "false", "2"]),
    ("fsdp.root_reshard_after_forward", &["true", "false", "2"]),
    ("fsdp.shard_dim_1", &["['wo']", "[]"]),
    ("loss.keep_logits", &["true", "false", "'backward'"]),
    ("megatron.cp_comm_type", &["'p2p'", "'all_gather'", "'a2a'", "'a2a+p2p'"]),
    ("lora.alpha", &["16.0", "32.0"]),
    ("lora.dropout", &["0.05", "0.0"]),
    ("lora.modules", &["['q_proj','v_proj']", "['all-linear']", "['down_proj']", "['linear_qkv']"]),
    ("lora.rank", &["8", "16"]),
    ("trained.freeze", &["['embedding']", "['embedding', 'head']", "['layers']", "['norm']"]),
    ("megatron.get_batch", &["'0.5'", "'0.12'", "'each_rank'"]),
    ("megatron.hierarchical_context_parallel_sizes", &["[2, 2]", "[2]"]),
    ("megatron.moe_token_dispatcher_type", &["'allgather'", "'alltoall'", "'flex'"]),
    ("megatron.recompute_modules", &["['core_attn']", "['layernorm']", "['mlp']", "['moe_act']", "['moe']"]),
    ("megatron.cuda_graph_scope", &["['attn']", "['full_iteration']", "['mlp']", "[]"]),
    ("mesh.dcn_data", &["1", "2"]),
    (
        "mesh.logical_axis_rules",
        &["[['exp', 'expert']]", "[['activation_batch', ['data', 'fsdp']]]", "[['embed', []]]"],
    ),
    ("model.config", &["{ num_hidden_layers = 12 }"]),
    ("model.huggingface", &["'config.json'"]),
    ("model.name", &["'llama-3.1-8b'"]),
    ("optimizer.implementation", &["'fused'", "'foreach'", "'for_loop'"]),
    ("optimizer.name", &["'adamw'", "'sgd'", "'decoupled_adamw'", "'adamw_8bit'"]),
    ("pipeline.layers", &["[1, 3]", "[3, 1]", "[1, 2]", "[2, 2]"]),
    ("pipeline.layers_per_stage", &["1", "2", "3"]),
    ("pipeline.schedule", &["'1F1B'", "'GPipe'", "'Interleaved1F1B'", "'ZBVZeroBubble'", "'ZBH1'", "'zb-h1'"]),
    ("ranks.draws", &["1", "3"]),
    ("ranks.host_jitter", &["0.0", "0.05"]),
    ("ranks.kernel_jitter", &["0.0", "0.05"]),
    ("ranks.slow", &["{ rank = 0, pace = 0.5 }", "[{ rank = 0, pace = 0.8 }, { rank = 1, pace = 0.9 }]"]),
    ("ranks.slow_links", &["{ rank = 0, pace = 0.5 }"]),
    ("ranks.spread", &["0.02", "0.1"]),
    ("ranks.speed", &["'gemm'", "'training'"]),
    ("topology.name", &["'a100-sxm-80gb'", "'tpu-v5e'"]),
    ("topology.nic_bandwidth", &["'10 GB/s'"]),
    ("topology.power_limit", &["'500 W'", "'1 kW'"]),
    ("topology.profile", &["'h200-sxm-141gb'", "'b200-sxm'", "'b200-sxm-throttled'"]),
    ("topology.slice", &["'2x2'", "'4x4'", "'2x4'"]),
    ("xla.python_client_mem_fraction", &["0.9", "0.05"]),
    ("xla.flags", &["[]", "['HOST_OFFLOAD_FLAGS']", "['CF_FOR_ALL_GATHER', 'DATA_PARALLEL_OVERLAP']"]),
    ("xla.remat_policy", &["'full'", "'minimal'", "'save_qkv_proj'", "'custom'"]),
    ("zero.aio.block_size", &["1048576", "100000000"]),
    ("zero.offload_optimizer.nvme_path", &["'/nvme'"]),
    ("zero.offload_param.nvme_path", &["'/nvme'"]),
];

pub struct Key {
    /// With its tables' names before it: `zero.aio.block_size`.
    pub name: String,
    /// What to try.
    pub values: Vec<Value>,
}

/// The value of a key that a file has.
pub fn get<'f>(file: &'f Table, name: &str) -> Option<&'f Value> {
    let mut parts = name.split('.');
    let first = file.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

/// The file with a key set.
pub fn set(file: &Table, name: &str, value: Value) -> Table {
    let mut file = file.clone();
    let (tables, key) = name.rsplit_once('.').unwrap_or(("", name));
    let mut table = &mut file;
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = entry.as_table_mut().unwrap();
    }
    table.insert(key.to_owned(), value);
    file
}

fn value(text: &str) -> Value {
    let table: Table = format!("v = {text}").parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    table["v"].clone()
}

/// What the reader says of a key's value.
fn said(name: &str, value: Value) -> String {
    let file = set(&TINY.parse().unwrap(), name, value);
    Scenario::parse(FILE, &file.to_string()).map_or_else(|error| error.to_string(), |_| String::new())
}

/// Words that a message lists after what it expected.
pub fn listed(message: &str) -> Vec<String> {
    let list = message.lines().next().unwrap_or_default().rsplit_once("expected ").map_or("", |(_, list)| list);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Keys of a table, as the reader lists them.
pub fn of_table(name: &str) -> Vec<String> {
    let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
    let message = said(&format!("{prefix}{WORD}"), Value::Boolean(true));
    assert!(message.contains("there is no key"), "{name}: {message}");
    listed(&message).into_iter().map(|key| format!("{prefix}{key}")).collect()
}

/// What the reader says of a word that no key takes.
pub fn said_of_a_word(name: &str) -> String {
    said(name, Value::String(WORD.to_owned()))
}

/// All keys, with values to try for each.
pub fn all() -> Vec<Key> {
    // What the run is called, and what it measured, which other commands read.
    let tables = TABLES.into_iter().filter(|table| !["", "measured"].contains(&table.name));
    let rows = tables.flat_map(|table| table.keys.iter().map(move |key| (key.path.to_owned(), key.kind)));
    let mut keys: Vec<Key> = rows.map(|(name, kind)| Key { values: values(&name, kind), name }).collect();
    keys.sort_by(|one, other| one.name.cmp(&other.name));
    keys
}

/// Values to try.
pub fn values(name: &str, kind: Kind) -> Vec<Value> {
    let many = |texts: &[&str]| texts.iter().map(|text| value(text)).collect();
    if let Some((_, texts)) = OTHERS.iter().find(|(other, _)| *other == name) {
        return many(texts);
    }
    match kind {
        Kind::Flag => many(&["true", "false"]),
        Kind::Count(_) => many(&["0", "1", "2", "3", "4", "8", "256", "1024", "20000", "1000000"]),
        Kind::Number => many(&["0.5", "1.5", "1.0", "0.0"]),
        Kind::Choice(choices) => {
            let forms = |choice: &Choice| {
                let word = choice.word();
                [
                    format!("{word:?}"),
                    format!("{{ {word} = 1 }}"),
                    format!("{{ {word} = 2 }}"),
                    format!("{{ {word} = 0.5 }}"),
                ]
            };
            choices.iter().flat_map(forms).map(|text| value(&text)).collect()
        }
        Kind::Text | Kind::Quantity(_) | Kind::List(_) | Kind::Other(_) => panic!("{name}: write values to try"),
    }
}
