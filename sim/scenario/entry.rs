//! What a runtime's reader has to say of it, what it is given, and what it makes of that. The table of them is `registry.rs`.

use super::error::ScenarioError;
use super::reader::Reader;
use super::written;
use crate::cost::{Profile, Regime, Software};
use crate::hardware::{Topology, Vendor};
use crate::model::ModelConfig;
use crate::runtime::Plan;

/// A framework as a scenario names it, and who reads the rest of the file for it.
#[derive(Debug)]
pub struct Entry {
    /// As a scenario writes it.
    pub(super) written: &'static str,
    /// What else somebody may call it, or what runs on it, in small letters with dashes.
    pub(super) also: &'static [&'static str],
    /// The framework's short name.
    pub(super) name: &'static str,
    /// The lane's name in reports.
    pub(super) lane: &'static str,
    /// Whether its ranks split a model on Megatron's axes.
    pub(super) splits_model: bool,
    /// How a file says what runs again in backward.
    pub(super) recompute: Rerun,
    /// Whose chips it runs on.
    pub(super) vendor: Vendor,
    /// Whose chips it runs on besides.
    pub(super) also_on: &'static [Vendor],
    /// Decides what the framework leaves to the file.
    pub(super) decide: fn(&mut Reader<'_>, Base<'_>) -> Result<Decided, ScenarioError>,
}

/// Where a file says what runs again in backward.
#[derive(Clone, Copy, Debug)]
pub struct Rerun {
    /// The key.
    pub key: &'static str,
    /// What it may say; `every=2` is `{ every = 2 }`, of any number.
    pub values: &'static [&'static str],
    /// Keys that say more of it, which give way to another value.
    pub beside: &'static [&'static str],
}

/// The framework whose program is compiled.
#[derive(Clone, Copy, Debug)]
pub struct Runtime(pub(super) &'static Entry);

impl PartialEq for Runtime {
    fn eq(&self, other: &Runtime) -> bool {
        self.0.written == other.0.written
    }
}

impl Eq for Runtime {}

/// Whether it is the runtime of that name (`names.rs`).
impl PartialEq<&str> for Runtime {
    fn eq(&self, name: &&str) -> bool {
        self.0.written == *name
    }
}

impl Runtime {
    /// As a scenario writes it.
    pub fn written(self) -> &'static str {
        self.0.written
    }

    /// The framework's short name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The lane's name in reports.
    pub fn lane(self) -> &'static str {
        self.0.lane
    }

    /// Whether its ranks split a model on Megatron's axes.
    pub fn splits_model(self) -> bool {
        self.0.splits_model
    }

    /// How a file says what runs again in backward.
    pub fn recompute(self) -> Rerun {
        self.0.recompute
    }

    /// Whose chips it runs on first, and is planned for.
    pub fn vendor(self) -> Vendor {
        self.0.vendor
    }

    /// Whether it runs on chips of a vendor.
    pub fn runs_on(self, vendor: Vendor) -> bool {
        self.0.vendor == vendor || self.0.also_on.contains(&vendor)
    }

    /// Reads the rest of a file.
    pub(super) fn decide(self, reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
        (self.0.decide)(reader, base)
    }
}

/// What every runtime's reader starts from.
pub(super) struct Base<'a> {
    pub scenario: &'a written::Scenario,
    pub runtime: Runtime,
    pub topology: &'a Topology,
    pub profile: &'a Profile,
    pub model: ModelConfig,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Sequences of a micro-batch.
    pub micro: u64,
    /// Micro-batches of a step.
    pub accumulation: u64,
}

/// What it makes of it.
pub(super) struct Decided {
    pub job: Plan,
    pub regime: Regime,
    pub software: Software,
    pub expandable_segments: bool,
}
