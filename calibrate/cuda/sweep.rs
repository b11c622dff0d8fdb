//! What can be measured: a sweep plans jobs, prepares each on the device, and launches it as often as the timer asks.
//!
//! To add one: a file with a type that implements [`Sweep`], and a line in [`super::sweeps`].

use super::device::Device;
use super::error::CudaError;
use super::library::Library;
use crate::plan::Job;
use crate::points::{Machine, What};

/// One kind of thing to measure.
pub trait Sweep {
    /// Its name, as `--sweeps` takes it.
    fn name(&self) -> &'static str;

    /// Libraries that it cannot do without.
    fn needs(&self) -> &'static [Library];

    /// What this machine lacks for it, besides libraries.
    fn lacks(&self, _machine: &Machine) -> Option<String> {
        None
    }

    /// What it would measure on this machine.
    fn plan(&self, machine: &Machine) -> Vec<Job>;

    /// Whether it is the sweep that measures this.
    fn measures(&self, what: &What) -> bool;

    /// Gets everything ready that is not to be timed: memory, descriptors, compiled kernels.
    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip>;

    /// Compares results with what the host computes, where there are results to compare: what agreed, in words, or what
    /// did not.
    fn check(&self, _device: &Device) -> Result<Option<String>, Skip> {
        Ok(None)
    }
}

/// Something ready to run.
pub trait Prepared {
    /// Issues it once on the device's stream. `turn` counts up and rotates the buffers, so that nothing stays in the
    /// second-level cache.
    fn launch(&mut self, turn: usize) -> Result<(), CudaError>;

    /// Which algorithm or kernel a library chose, where it says so.
    fn algorithm(&self) -> Option<String> {
        None
    }

    /// By which clock it is timed.
    fn watch(&self) -> Watch {
        Watch::Device
    }

    /// How many of the thing one launch is; the time is divided by it.
    fn per_launch(&self) -> u32 {
        1
    }

    /// Called before each timed batch, which is expected to be through in `expected_us` microseconds.
    fn begin(&mut self, _expected_us: f64) -> Result<(), CudaError> {
        Ok(())
    }

    /// Called after each timed batch has been issued and has run.
    fn end(&mut self) -> Result<(), CudaError> {
        Ok(())
    }
}

/// By which clock something is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// CUDA events around a batch of launches: what the device spends.
    Device,
    /// The host's clock until the calls have returned: what the host spends.
    Host,
    /// The host's clock until the device has finished: a rate, or a latency.
    Both,
}

/// Why something was not measured; it is recorded, and measuring goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The reason, for people.
    pub why: String,
    /// It ran, and its results were wrong.
    pub wrong: bool,
}

impl Skip {
    /// Skipped for this reason.
    pub fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), wrong: false }
    }

    /// Not timed, because its results are wrong.
    pub fn wrong(why: impl Into<String>) -> Self {
        Self { why: why.into(), wrong: true }
    }
}

impl From<CudaError> for Skip {
    fn from(error: CudaError) -> Self {
        Self::because(error.to_string())
    }
}
