//! Kernels that memory bounds, as curves over size: PyTorch's and inductor's kinds of kernels, written once more in CUDA C++
//! and compiled for the device at hand. What each reads and writes is counted as the simulator counts it: every operand
//! once, small ones (a norm's weight) not at all.

mod catalogue;
mod check;

use super::device::{Device, Fill, Kernel, Ring};
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, What};
pub use catalogue::memory_kernel;
use catalogue::{Grid, KERNELS, SOURCE, Spec};

/// Memory-bound kernels.
pub struct Memory;

/// Their share of a step, assumed; it orders the measuring.
const SHARE: f64 = 0.15;

impl Sweep for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver, Library::Nvrtc]
    }

    fn plan(&self, machine: &Machine) -> Vec<Job> {
        let jobs: Vec<What> = KERNELS.iter().flat_map(|spec| spec.sizes(machine)).collect();
        let value = SHARE / jobs.len() as f64;
        jobs.into_iter().map(|what| Job { what, value }).collect()
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::Memory { .. })
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let What::Memory { kernel, read, written, .. } = what else {
            return Err(Skip::because("not bounded by memory"));
        };
        let spec = KERNELS.iter().find(|spec| spec.kernel == kernel);
        let spec = spec.ok_or_else(|| Skip::because(format!("no memory-bound kernel {kernel:?}")))?;
        let units = spec.units(*read, *written);
        if units == 0 || spec.what(units) != *what {
            return Err(Skip::because(format!("{kernel} reads and writes other numbers of bytes than that")));
        }
        Ok(Box::new(Ready::new(device, spec, units)?))
    }

    fn check(&self, device: &Device) -> Result<Option<String>, Skip> {
        check::check(device).map(Some)
    }
}

struct Ready<'d> {
    device: &'d Device,
    kernel: Kernel,
    spec: &'static Spec,
    units: u64,
    operands: Vec<Ring>,
    /// Small operands that stay where they are: weights, tables, partial sums.
    fixed: Vec<Ring>,
}

impl<'d> Ready<'d> {
    fn new(device: &'d Device, spec: &'static Spec, units: u64) -> Result<Self, CudaError> {
        let defines: Vec<String> = spec.defines.iter().map(|define| (*define).to_owned()).collect();
        let kernel = device.kernel(SOURCE, spec.function, &defines)?;
        let copies = device.turns(spec.operands.iter().map(|operand| units * operand.bytes).sum());
        let ring = |copies, bytes, fill: Fill| device.ring(copies, bytes, fill);
        let operands = spec.operands.iter().map(|operand| ring(copies, units * operand.bytes, operand.fill));
        let fixed = spec.fixed.iter().map(|operand| ring(1, operand.bytes, operand.fill));
        let (operands, fixed) = (operands.collect::<Result<_, _>>()?, fixed.collect::<Result<_, _>>()?);
        Ok(Self { device, kernel, spec, units, operands, fixed })
    }
}

impl Ready<'_> {
    /// What an operand holds.
    fn numbers(&self, at: usize) -> Result<Vec<f32>, CudaError> {
        let (ring, fill) = match at.checked_sub(self.operands.len()) {
            None => (&self.operands[at], self.spec.operands[at].fill),
            Some(at) => (&self.fixed[at], self.spec.fixed[at].fill),
        };
        let bytes =
            (self.units * self.spec.operands.get(at).map_or(u64::MAX / self.units, |operand| operand.bytes)) as usize;
        Ok(fill.numbers(&self.device.read(ring.buffer(), bytes)?))
    }
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, turn: usize) -> Result<(), CudaError> {
        let mut arguments: Vec<u64> = self.operands.iter().map(|ring| ring.at(turn)).collect();
        arguments.extend(self.fixed.iter().map(|ring| ring.at(0)));
        arguments.push(self.units);
        let grid = match self.spec.grid {
            Grid::PerBlock(units) => self.units.div_ceil(units),
            Grid::PerProcessor(blocks) => (u64::from(self.device.facts().processors) * blocks).min(self.units),
        };
        self.device.launch(self.device.stream(), &self.kernel, grid as u32, self.spec.block, 0, &arguments)
    }
}
