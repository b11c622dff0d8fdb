//! One CUDA device: its streams, its memory, its kernels.

mod fill;
mod kernel;
mod memory;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};

use super::error::CudaError;
pub use fill::Fill;
pub use kernel::Kernel;
#[cfg(test)]
pub use kernel::compile;
pub use memory::{Buffer, Pinned, Ring};

/// Kernels that every measurement may need, in PTX, so that they want no compiler.
const HELPERS: &str = include_str!("device/helpers.ptx");

/// A device with a context, a stream to measure on, and one for what runs beside.
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    beside: Arc<CudaStream>,
    facts: Facts,
    delay: Kernel,
    empty: Kernel,
    starts: Cell<u64>,
    patterns: RefCell<BTreeMap<Fill, Arc<Buffer>>>,
    modules: RefCell<BTreeMap<(usize, String), Rc<kernel::Module>>>,
}

/// What the driver says about a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// As the driver names it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Processors (SMs).
    pub processors: u32,
    /// Second-level cache \[B\].
    pub l2: u64,
    /// Memory \[B\].
    pub memory: u64,
    /// By the memory's clock and the bus' width \[B/s\].
    pub memory_bandwidth: f64,
    /// Shared memory that one block may ask for \[B\].
    pub shared_per_block: u32,
    /// Its address, as NVML and `nvidia-smi` write it.
    pub bus: String,
}

impl Device {
    /// Opens device `ordinal`.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let context = CudaContext::new(ordinal)?;
        let facts = facts(ordinal)?;
        let (stream, beside) = (context.new_stream()?, context.new_stream()?);
        let helpers = kernel::Module::from_ptx(HELPERS)?;
        let (delay, empty) = (helpers.kernel("delay")?, helpers.kernel("empty")?);
        let (starts, patterns, modules) = Default::default();
        Ok(Self { context, stream, beside, facts, delay, empty, starts, patterns, modules })
    }

    /// The driver's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The stream that is measured.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The stream of what runs beside.
    pub fn beside(&self) -> &Arc<CudaStream> {
        &self.beside
    }

    /// What the driver says about it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// An event that can be timed.
    pub fn event(&self) -> Result<CudaEvent, CudaError> {
        Ok(self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    /// Waits until everything issued has run.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.context.synchronize()?)
    }

    /// Keeps the measured stream busy for `us` microseconds, so that the host can issue what comes next meanwhile. The
    /// time is bounded, so nothing can lock up.
    pub fn delay(&self, us: f64) -> Result<(), CudaError> {
        self.launch(&self.stream, &self.delay, 1, 1, 0, &[(us * 1e3) as u64])
    }

    /// The kernel that does nothing.
    pub fn empty(&self) -> &Kernel {
        &self.empty
    }

    /// How many copies of `bytes` to take turns with, so that none is still in the second-level cache at its next turn.
    pub fn turns(&self, bytes: u64) -> usize {
        let copies = (2 * self.facts.l2).div_ceil(bytes.max(1)) + 1;
        copies.clamp(2, 1 << 16) as usize
    }
}

/// What the driver says about device `ordinal`. It takes no context, so the device stays as it is.
#[allow(unsafe_code)]
pub fn facts(ordinal: usize) -> Result<Facts, CudaError> {
    let device = result::device::get(ordinal as i32)?;
    let get = |attribute| {
        // SAFETY: the device is one that the driver named.
        let value = unsafe { result::device::get_attribute(device, attribute) }?;
        Ok::<u64, CudaError>(value.max(0) as u64)
    };
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }?;
    let clock = get(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)? as f64 * 1e3;
    let width = get(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)? as f64 / 8.0;
    let [domain, bus, slot] = [
        get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    ];
    let major = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32;
    let minor = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32;
    Ok(Facts {
        name: result::device::get_name(device)?,
        capability: (major, minor),
        processors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        l2: get(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory: memory as u64,
        memory_bandwidth: 2.0 * clock * width,
        shared_per_block: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        bus: format!("{domain:08x}:{bus:02x}:{slot:02x}.0"),
    })
}
