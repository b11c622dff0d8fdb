//! Every key that a scenario may have: what it takes, which frameworks read it, and what to write where one does not.
//!
//! To add a key: a field in `written/` and a row in `keys/`; a test fails where only one of them has it. A framework refuses every key
//! that its rows do not name ([`super::foreign`]), `docs/keys.md` and `docs/schema/scenario.json` are written from this table, and so is the order of tables in
//! scenarios that a program writes.

use std::sync::LazyLock;

pub mod example;
mod failures;
mod job;
mod megatron;
pub mod presets;
mod pytorch;
mod ranks;
mod readers;
mod row;
mod small;
mod torch_xla;
mod trained;
mod training;
pub mod words;
mod xla;
mod zero;

use crate::near::did_you_mean;
pub(super) use row::instead;
pub use row::{Choice, Group, Key, Kind, Table};

/// The keys at the top of a file.
const TOP: Table = Table {
    name: "",
    help: "The keys at the top of the file.",
    group: Group::Sharding,
    owner: None,
    instead: &[],
    keys: &[
        Key::new("description", Kind::Text, readers::ALL, "What the run is, for reports."),
        Key::new("runtime", Kind::Text, readers::ALL, "The framework: `fsdp2`, `megatron`, …."),
    ],
};

/// All tables, in the order that people write them.
pub const TABLES: [&Table; 33] = [
    &TOP,
    &job::TOPOLOGY_KEYS,
    &job::MODEL_KEYS,
    &job::MESH_KEYS,
    &job::PIPELINE_KEYS,
    &job::BATCH_KEYS,
    &job::TENSOR_PARALLEL_KEYS,
    &job::PRECISION_KEYS,
    &megatron::MEGATRON_KEYS,
    &small::INTERNEVO_KEYS,
    &small::NANOTRON_KEYS,
    &xla::XLA_KEYS,
    &torch_xla::TORCH_XLA_KEYS,
    &zero::ZERO_KEYS,
    &pytorch::FSDP_KEYS,
    &pytorch::FSDP1_KEYS,
    &pytorch::DDP_KEYS,
    &pytorch::COMPILE_KEYS,
    &pytorch::FLOAT8_KEYS,
    &trained::TRAINED_KEYS,
    &trained::LORA_KEYS,
    &trained::DPO_KEYS,
    &pytorch::ACTIVATION_CHECKPOINTING_KEYS,
    &pytorch::ATTENTION_KEYS,
    &training::LOSS_KEYS,
    &training::OPTIMIZER_KEYS,
    &training::LOOP_KEYS,
    &training::FRAMEWORK_KEYS,
    &training::MEMORY_KEYS,
    &ranks::RANKS_KEYS,
    &failures::FAILURES_KEYS,
    &failures::CHECKPOINT_KEYS,
    &job::MEASURED_KEYS,
];

/// The JSON Schema of a scenario, `docs/schema/scenario.json`: with it an editor completes and checks scenario files.
pub const SCHEMA: &str = include_str!("../../docs/schema/scenario.json");

/// The table of that name.
pub fn table(name: &str) -> Option<&'static Table> {
    TABLES.into_iter().find(|table| table.name == name)
}

/// The row of a key, `table.key`.
pub fn row(path: &str) -> Option<&'static Key> {
    let (name, key) = path.split_once('.').unwrap_or(("", path));
    table(name)?.keys.iter().find(|row| row.name == key)
}

/// A key's path as the table has it, `table.key`.
pub fn path(written: &str) -> Option<&'static str> {
    static PATHS: LazyLock<Vec<String>> =
        LazyLock::new(|| TABLES.into_iter().flat_map(|table| table.keys.iter().map(|key| table.path(key))).collect());
    PATHS.iter().find(|known| *known == written).map(String::as_str)
}

/// Why a key cannot be set in a what-if; none if it can.
pub fn misnamed(path: &str) -> Option<String> {
    if row(path).is_some() {
        return None;
    }
    let known: Vec<String> =
        TABLES.into_iter().flat_map(|table| table.keys.iter().map(|key| table.path(key))).collect();
    let near = did_you_mean(path, known.iter().map(String::as_str));
    Some(format!("there is no key {path:?}{near}"))
}

/// Which of a comparison's groups a key is in.
pub fn group(path: &str) -> Group {
    let name = path.split_once('.').map_or("", |(table, _)| table);
    table(name).map_or(Group::Rest, |table| table.group)
}
