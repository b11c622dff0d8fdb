//! The runs of a sweep: which there are, in which order, and what tells one sweep's rows from another's.

use serde_json::value::RawValue;
use toml::Value;

use super::axis::{Axis, AxisError, apart};
use crate::explore::values::{json, shown};
use crate::scenario::{Scenario, ScenarioError};

/// Runs of a sweep, at most: so many rows are kept in memory.
pub const MOST: u64 = 100_000;

/// Every combination of some keys' values, of one scenario.
#[derive(Debug)]
pub struct Grid {
    base: Scenario,
    axes: Vec<Axis>,
    runs: u64,
    /// The same for the same runs alone: what rows of a file are known by.
    id: String,
}

impl Grid {
    /// A grid over keys of a scenario, each written as `key=a,b,c`.
    pub fn new(base: Scenario, vary: &[String]) -> Result<Grid, AxisError> {
        let axes = vary.iter().map(|written| Axis::read(written)).collect::<Result<Vec<Axis>, AxisError>>()?;
        apart(&axes)?;
        let runs = axes.iter().map(|axis| axis.values.len() as u128).fold(1_u128, u128::saturating_mul);
        if runs > u128::from(MOST) {
            return Err(AxisError::TooMany { runs, most: MOST });
        }
        let id = id(&base, &axes);
        Ok(Grid { base, axes, runs: runs as u64, id })
    }

    /// How many runs there are.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The keys that are varied, in the order in which they were named.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|axis| axis.key.as_str())
    }

    /// The scenario that is varied.
    pub fn base(&self) -> &Scenario {
        &self.base
    }

    /// What its rows are known by: a hash of the scenario, of the files that it names, of keys and values, and of the version.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The values of a run, key by key. The last key changes fastest.
    fn values(&self, run: u64) -> Vec<(&str, Option<&Value>)> {
        let (mut left, mut values) = (run, vec![]);
        for axis in self.axes.iter().rev() {
            let count = axis.values.len() as u64;
            let value = axis.values.get((left % count) as usize);
            values.push((axis.key.as_str(), value.and_then(Option::as_ref)));
            left /= count;
        }
        values.reverse();
        values
    }

    /// The values of a run as a table shows them.
    pub fn shown(&self, run: u64) -> Vec<String> {
        self.values(run).into_iter().map(|(_, value)| shown(value)).collect()
    }

    /// The values of a run as an object of JSON, whose keys are in the order in which they were named.
    pub(super) fn varied(&self, run: u64) -> Box<RawValue> {
        let pair = |(key, value): (&str, _)| format!("{}:{}", serde_json::Value::from(key), json(value));
        let pairs: Vec<String> = self.values(run).into_iter().map(pair).collect();
        RawValue::from_string(format!("{{{}}}", pairs.join(","))).expect("keys and values are JSON each")
    }

    /// The scenario of a run, as if its keys stood in the file.
    pub(super) fn scenario(&self, run: u64) -> Result<Scenario, ScenarioError> {
        let set = |builder: crate::scenario::Builder, (key, value): (&str, Option<&Value>)| match value {
            Some(value) => builder.set(key, value.clone()),
            None => builder.unset(key),
        };
        self.values(run).into_iter().fold(self.base.to_builder(), set).build()
    }
}

/// A hash of all that decides a grid's rows.
fn id(base: &Scenario, axes: &[Axis]) -> String {
    let mut hash = Fnv::default();
    hash.add(env!("CARGO_PKG_VERSION"));
    hash.add(&base.draft.text());
    for named in [format!("{:?}", base.topology), format!("{:?}", base.profile), format!("{:?}", base.job)] {
        hash.add(&named);
    }
    for axis in axes {
        hash.add(&axis.key);
        axis.values.iter().for_each(|value| hash.add(&json(value.as_ref()).to_string()));
    }
    format!("{:016x}", hash.0)
}

/// The hash of Fowler, Noll and Vo (FNV-1a, 64 bits), which is the same on every machine and in every release of Rust.
pub(super) struct Fnv(pub(super) u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Takes a text in, and its end.
    pub(super) fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
