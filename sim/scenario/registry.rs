//! The runtimes that a scenario can name. To add one: a reader with its [`Entry`], and a line in [`Runtime::ALL`].

use super::error::ScenarioError;
use super::understood::{Base, Decided, Reader};
use super::{internevo, megatron, nanotron, train, xla, zero};
use crate::hardware::Vendor;
use crate::near::nearest;

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

impl Runtime {
    /// All runtimes: the registry.
    pub const ALL: [Runtime; 9] = [
        train::FSDP2,
        train::FSDP1,
        train::SINGLE_DEVICE,
        megatron::MEGATRON,
        megatron::DEEPSPEED,
        zero::DEEPSPEED_ZERO,
        internevo::INTERNEVO,
        nanotron::NANOTRON,
        xla::XLA,
    ];

    /// The runtime that a scenario names so.
    pub fn find(written: &str) -> Option<Runtime> {
        Self::ALL.into_iter().find(|runtime| runtime.written() == written)
    }

    /// The runtime that goes by a name that no scenario may write.
    pub(super) fn called(name: &str) -> Option<Runtime> {
        let name = name.to_lowercase().replace(['_', ' '], "-");
        Self::ALL.into_iter().find(|runtime| runtime.written() == name || runtime.0.also.contains(&name.as_str()))
    }

    /// The runtime of which a name, or what else it goes by, is nearest to one that nobody knows.
    pub(super) fn near(name: &str) -> Option<Runtime> {
        let names = |runtime: Runtime| std::iter::once(runtime.0.written).chain(runtime.0.also.iter().copied());
        let near = nearest(name, Self::ALL.into_iter().flat_map(names))?;
        Self::called(near)
    }

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

    /// Whether it trains modules that predict tokens further ahead.
    pub(super) fn has_multi_token(self) -> bool {
        self == megatron::MEGATRON
    }

    /// Whose chips it runs on.
    pub fn vendor(self) -> Vendor {
        self.0.vendor
    }

    pub(super) fn decide(self, reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
        (self.0.decide)(reader, base)
    }
}
