//! Copies between the device and pinned memory of the host, as offloading and asynchronous checkpoints issue them.

use super::device::{Buffer, Device, Fill, Pinned};
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, What};

/// Copies over the host link.
pub struct HostCopies;

/// Their share of a step, assumed; it orders the measuring.
const SHARE: f64 = 0.02;

impl Sweep for HostCopies {
    fn name(&self) -> &'static str {
        "host_copy"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver]
    }

    fn plan(&self, _: &Machine) -> Vec<Job> {
        // 4 KiB to 1 GiB, by fours.
        let sizes = (12..=30).step_by(2).map(|power| 1u64 << power);
        let jobs: Vec<What> =
            sizes.flat_map(|bytes| [false, true].map(|to_host| What::HostCopy { bytes, to_host })).collect();
        let value = SHARE / jobs.len() as f64;
        jobs.into_iter().map(|what| Job { what, value }).collect()
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::HostCopy { .. })
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let What::HostCopy { bytes, to_host } = what else { return Err(Skip::because("not a copy to the host")) };
        let (there, here) = (device.random(*bytes, Fill::Bf16)?, device.pinned(*bytes)?);
        Ok(Box::new(Ready { device, there, here, bytes: *bytes, to_host: *to_host }))
    }
}

struct Ready<'d> {
    device: &'d Device,
    there: Buffer,
    here: Pinned,
    bytes: u64,
    to_host: bool,
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, _: usize) -> Result<(), CudaError> {
        self.device.copy_host(&self.there, &self.here, self.bytes, self.to_host)
    }
}
