//! Every key that a scenario may have: what it takes, which frameworks read it, and what to write where one does not.
//!
//! A key is declared once, in a file of `keys/`: its type, what it says, who reads it, an example, and every default with its source. A framework
//! refuses every key that does not name it ([`super::foreign`]), `docs/keys.md` and `docs/schema/scenario.json` are written from this table, and so is the order of tables in
//! scenarios that a program writes.

#[macro_use]
mod macros;

pub(super) mod attention;
pub(super) mod batch;
pub(super) mod checkpointing;
pub(super) mod compile;
pub(super) mod documents;
pub(super) mod dpo;
pub mod example;
pub(super) mod experts;
pub(super) mod failures;
pub(super) mod float8;
pub(super) mod framework;
pub(super) mod internevo;
pub(super) mod loss;
pub(super) mod measured;
pub(super) mod megatron;
pub(super) mod memory;
pub(super) mod mesh;
pub(super) mod model;
pub(super) mod nanotron;
pub(super) mod optimizer;
pub(super) mod precision;
pub(super) mod ranks;
pub(super) mod readers;
pub(super) mod readings;
pub(super) mod row;
pub(super) mod sharding;
pub(super) mod takes;
pub(super) mod topology;
pub(super) mod torch_xla;
pub(super) mod trained;
pub mod words;
pub(super) mod xla;
pub(super) mod zero;

use super::written;
use crate::near::did_you_mean;
pub(super) use row::instead;
pub use row::{Choice, Group, Key, Kind, Preset, Table};

/// All tables, in the order that people write them.
pub const TABLES: [&Table; 33] = [
    &written::Scenario::TABLE,
    &written::Topology::TABLE,
    &written::Model::TABLE,
    &written::Mesh::TABLE,
    &written::Pipeline::TABLE,
    &written::Batch::TABLE,
    &written::TensorParallel::TABLE,
    &written::Precision::TABLE,
    &written::Megatron::TABLE,
    &written::InternEvo::TABLE,
    &written::Nanotron::TABLE,
    &written::Xla::TABLE,
    &written::TorchXla::TABLE,
    &written::Zero::TABLE,
    &written::Fsdp::TABLE,
    &written::Fsdp1::TABLE,
    &written::Ddp::TABLE,
    &written::Compile::TABLE,
    &written::Float8::TABLE,
    &written::Trained::TABLE,
    &written::Lora::TABLE,
    &written::Dpo::TABLE,
    &written::Checkpointing::TABLE,
    &written::Attention::TABLE,
    &written::Loss::TABLE,
    &written::Optimizer::TABLE,
    &written::Loop::TABLE,
    &written::Framework::TABLE,
    &written::Memory::TABLE,
    &written::Ranks::TABLE,
    &written::Failures::TABLE,
    &written::Checkpoint::TABLE,
    &written::Measured::TABLE,
];

/// The JSON Schema of a scenario, `docs/schema/scenario.json`: with it an editor completes and checks scenario files.
pub const SCHEMA: &str = include_str!("../../docs/schema/scenario.json");

/// The table of that name.
pub fn table(name: &str) -> Option<&'static Table> {
    TABLES.into_iter().find(|table| table.name == name)
}

/// All keys, table by table.
pub fn all() -> impl Iterator<Item = &'static Key> {
    TABLES.into_iter().flat_map(|table| table.keys)
}

/// The row of a key, `table.key`.
pub fn row(path: &str) -> Option<&'static Key> {
    all().find(|row| row.path == path)
}

/// Why a key cannot be set in a what-if; none if it can.
pub fn misnamed(path: &str) -> Option<String> {
    if row(path).is_some() {
        return None;
    }
    let near = did_you_mean(path, all().map(|key| key.path));
    Some(format!("there is no key {path:?}{near}"))
}

/// Which of a comparison's groups a key is in.
pub fn group(path: &str) -> Group {
    let name = path.split_once('.').map_or("", |(table, _)| table);
    table(name).map_or(Group::Rest, |table| table.group)
}
