//! A topology file as written: serde only, nothing checked but shapes and units.
//!
//! Every number is a table `{ value = …, source = … }`; without a source it does not parse. A source is a key of
//! `[sources]`, or begins with `assumed` (nobody published it; say why) or `derived` (from other numbers; say how).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use crate::units::{Bandwidth, Bytes, FlopRate, Frequency, Power, Time};

#[cfg(test)]
mod tests;

/// A number and where it comes from.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sourced<T> {
    /// The number, with its unit if it has one.
    #[cfg_attr(test, schemars(with = "T"))]
    pub value: Spanned<T>,
    /// A key of `[sources]`, or `assumed` or `derived` with the reason.
    #[cfg_attr(test, schemars(with = "String"))]
    pub source: Spanned<String>,
}

/// The whole file. One with a base may leave out what the base says.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("required" = ["name"], "anyOf" = tests::based_or_whole())))]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The name that scenarios write; the file is called the same.
    #[cfg_attr(test, schemars(with = "String"))]
    pub name: Spanned<String>,
    /// The machine that this one is like, by name or path: the file says what differs, and all else is as there.
    pub base: Option<String>,
    /// What the machine is, in a line.
    pub description: String,
    /// The profile of costs that belongs to the chip: a shipped name or a path.
    pub profile: String,
    /// Publications that numbers come from, by the names that `source` uses.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub sources: BTreeMap<String, Spanned<String>>,
    /// One accelerator.
    pub chip: Chip,
    /// One host and its chips.
    pub node: Node,
    /// What joins chips, then nodes, from the innermost level outwards.
    #[cfg_attr(test, schemars(with = "Vec<Level>"))]
    pub fabric: Spanned<Vec<Level>>,
    /// Slices of a TPU pod that are sold.
    #[serde(default)]
    pub slice: Vec<Slice>,
    /// What an hour of a chip costs.
    pub price: Option<Price>,
}

/// One accelerator.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("required" = [] as [&str; 0])))]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// The vendor's name.
    pub name: String,
    /// Who makes it.
    pub vendor: Vendor,
    /// Memory that a process can use.
    pub memory: Sourced<Bytes>,
    /// Peak bandwidth of that memory.
    pub memory_bandwidth: Sourced<Bandwidth>,
    /// Dense rates by number format.
    pub peak: Peak,
    /// SMs of a GPU, TensorCores of a TPU.
    pub cores: Sourced<u32>,
    /// Devices that JAX shows of one chip of a torus, each a rank with its share of what is written here; unset: one.
    pub devices: Option<Sourced<u32>>,
    /// The last cache before memory.
    pub l2: Sourced<Bytes>,
    /// CUDA compute capability; a TPU has none.
    pub compute_capability: Option<Sourced<f64>>,
    /// Power limit of the board.
    pub power: Option<Sourced<Power>>,
    /// Highest clock of the cores.
    pub clock: Option<Sourced<Frequency>>,
    /// The link to the host, one direction.
    pub host_bandwidth: Sourced<Bandwidth>,
}

/// Who makes it.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Vendor {
    /// GPUs.
    Nvidia,
    /// TPUs.
    Google,
}

/// Dense rates by number format.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("required" = [] as [&str; 0])))]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// bfloat16.
    pub bf16: Sourced<FlopRate>,
    /// float16; absent: as bf16.
    pub fp16: Option<Sourced<FlopRate>>,
    /// TF32.
    pub tf32: Option<Sourced<FlopRate>>,
    /// float32 without tensor cores.
    pub fp32: Option<Sourced<FlopRate>>,
    /// float8.
    pub fp8: Option<Sourced<FlopRate>>,
}

/// One host and its chips.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("required" = [] as [&str; 0])))]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Chips of a node.
    pub chips: Sourced<u32>,
    /// Cores of the host.
    pub host_cores: Sourced<u32>,
    /// Memory of the host.
    pub host_memory: Option<Sourced<Bytes>>,
    /// Rate at which all disks of a node together read.
    pub disk_read: Option<Sourced<Bandwidth>>,
    /// Rate at which all disks of a node together write.
    pub disk_write: Option<Sourced<Bandwidth>>,
    /// Network interfaces.
    pub nics: Sourced<u32>,
    /// Bandwidth of one network interface, one direction.
    pub nic_bandwidth: Sourced<Bandwidth>,
}

/// A level of the fabric.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("required" = ["name"])))]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Its name in reports.
    pub name: String,
    /// How it joins: `switch`, `rails`, or a torus with its links.
    #[cfg_attr(test, schemars(with = "Kind"))]
    pub kind: Spanned<Kind>,
    /// Instances of the level below that one instance joins.
    pub size: Sourced<Joins>,
    /// One chip's bandwidth into this level, one direction.
    pub bandwidth: Sourced<Bandwidth>,
    /// Time of the smallest message between two chips that this level joins and no inner one does.
    pub latency: Sourced<Time>,
    /// What the chips below one uplink can send over what the uplink carries, 1 or more; unset: 1.
    pub oversubscription: Option<Sourced<f64>>,
}

/// `kind = "switch"`, `kind = "rails"` or `kind.torus.links = …`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Switch,
    Rails,
    Torus(Torus),
}

/// A torus.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Torus {
    /// Links of one chip.
    pub links: Sourced<u32>,
}

/// How many instances of the level below one instance of this level joins.
#[derive(Clone, Copy)]
pub enum Joins {
    Count(u32),
    Unbounded,
}

impl<'de> Deserialize<'de> for Joins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Joins;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a count, or \"unbounded\"")
            }
            fn visit_i64<E: Error>(self, count: i64) -> Result<Joins, E> {
                let out_of_range =
                    || E::custom(format!("{count} is out of range: expected a count from 1 to {}", u32::MAX));
                u32::try_from(count).map(Joins::Count).map_err(|_| out_of_range())
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Joins, E> {
                match text {
                    "unbounded" => Ok(Joins::Unbounded),
                    _ => Err(E::custom(format!("{text:?} is no size: expected a count, or \"unbounded\""))),
                }
            }
        }
        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Joins {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Joins".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": u32::MAX}, {"const": "unbounded"}]})
    }
}

/// A slice that is sold: its shape, and which axes close into rings.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Chips along each axis.
    #[cfg_attr(test, schemars(with = "Vec<u32>"))]
    pub shape: Spanned<Vec<u32>>,
    /// Which axes close into rings.
    #[cfg_attr(test, schemars(with = "Vec<bool>"))]
    pub wraps: Spanned<Vec<bool>>,
    /// Where that is written.
    #[cfg_attr(test, schemars(with = "String"))]
    pub source: Spanned<String>,
}

/// What it costs.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// US dollars for one chip and hour, on demand.
    pub usd_per_chip_hour: Sourced<f64>,
}
