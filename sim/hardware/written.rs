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

/// A number and where it comes from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sourced<T> {
    pub value: Spanned<T>,
    pub source: Spanned<String>,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub name: Spanned<String>,
    pub description: String,
    pub profile: String,
    pub sources: BTreeMap<String, Spanned<String>>,
    pub chip: Chip,
    pub node: Node,
    pub fabric: Spanned<Vec<Level>>,
    #[serde(default)]
    pub slice: Vec<Slice>,
    pub price: Option<Price>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    pub name: String,
    pub vendor: Vendor,
    pub memory: Sourced<Bytes>,
    pub memory_bandwidth: Sourced<Bandwidth>,
    pub peak: Peak,
    pub cores: Sourced<u32>,
    pub l2: Sourced<Bytes>,
    pub compute_capability: Option<Sourced<f64>>,
    pub power: Option<Sourced<Power>>,
    pub clock: Option<Sourced<Frequency>>,
    pub host_bandwidth: Sourced<Bandwidth>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vendor {
    Nvidia,
    Google,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peak {
    pub bf16: Sourced<FlopRate>,
    pub fp16: Option<Sourced<FlopRate>>,
    pub tf32: Option<Sourced<FlopRate>>,
    pub fp32: Option<Sourced<FlopRate>>,
    pub fp8: Option<Sourced<FlopRate>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub chips: Sourced<u32>,
    pub host_cores: Sourced<u32>,
    pub host_memory: Option<Sourced<Bytes>>,
    pub disk_read: Option<Sourced<Bandwidth>>,
    pub disk_write: Option<Sourced<Bandwidth>>,
    pub nics: Sourced<u32>,
    pub nic_bandwidth: Sourced<Bandwidth>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    pub name: String,
    pub kind: Spanned<Kind>,
    pub size: Sourced<Joins>,
    pub bandwidth: Sourced<Bandwidth>,
    pub latency: Sourced<Time>,
}

/// `kind = "switch"`, `kind = "rails"` or `kind.torus.links = …`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Switch,
    Rails,
    Torus(Torus),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Torus {
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

/// A slice that is sold: its shape, and which axes close into rings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    pub shape: Spanned<Vec<u32>>,
    pub wraps: Spanned<Vec<bool>>,
    pub source: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub usd_per_chip_hour: Sourced<f64>,
}
