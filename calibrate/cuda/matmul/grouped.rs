//! One multiplication for each expert, as Transformer Engine's grouped linear issues them: cuBLASLt calls that take turns on
//! four streams (`multi_stream_cublas_gemm`), which fork from the stream before and join it after.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use super::lt::{Call, Handle, Problem, workspace};
use super::recipe::Recipe;
use super::{Operands, Shape, shapes};
use crate::cuda::device::{Buffer, Device};
use crate::cuda::error::CudaError;
use crate::cuda::library::Library;
use crate::cuda::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, What};

/// Streams (Transformer Engine, `nvte_get_num_compute_streams`).
const STREAMS: usize = 4;

/// Grouped multiplications.
#[derive(Default)]
pub struct Grouped {
    handle: Handle,
}

impl Sweep for Grouped {
    fn name(&self) -> &'static str {
        "grouped"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver, Library::CublasLt]
    }

    fn plan(&self, machine: &Machine) -> Vec<Job> {
        shapes::grouped(machine)
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::GroupedMatmul { .. })
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let What::GroupedMatmul { groups, m, n, k, dtype } = what else { return Err(Skip::because("not grouped")) };
        let recipe = Recipe::of(dtype, "forward").map_err(Skip::because)?;
        let shape = Shape { m: *m, n: *n, k: *k };
        // Every expert has operands of its own.
        let copies = device.turns(recipe.bytes(shape)).max(*groups as usize);
        let operands = Operands::new(device, &recipe, shape, copies)?;
        let call = Call::new(&self.handle, &Problem { recipe, shape, scales: operands.scales() }, device)?;
        let mut lanes = vec![];
        for _ in 0..STREAMS {
            lanes.push(Lane {
                stream: device.context().new_stream().map_err(CudaError::from)?,
                done: device.context().new_event(None).map_err(CudaError::from)?,
                workspace: device.alloc(workspace(device.facts().capability))?,
            });
        }
        let begun = device.context().new_event(None).map_err(CudaError::from)?;
        Ok(Box::new(Ready { device, call, groups: *groups as usize, operands, lanes, begun }))
    }
}

struct Lane {
    stream: Arc<CudaStream>,
    done: CudaEvent,
    workspace: Buffer,
}

struct Ready<'d> {
    device: &'d Device,
    call: Call,
    groups: usize,
    operands: Operands,
    lanes: Vec<Lane>,
    begun: CudaEvent,
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, turn: usize) -> Result<(), CudaError> {
        self.begun.record(self.device.stream())?;
        for lane in &self.lanes {
            lane.stream.wait(&self.begun)?;
        }
        for group in 0..self.groups {
            let (lane, at) = (&self.lanes[group % STREAMS], self.operands.at(turn * self.groups + group));
            self.call.run(at, &lane.workspace, &lane.stream)?;
        }
        for lane in &self.lanes {
            lane.done.record(&lane.stream)?;
            self.device.stream().wait(&lane.done)?;
        }
        Ok(())
    }

    fn algorithm(&self) -> Option<String> {
        Some(format!("{STREAMS} streams, {}", self.call.algorithm()))
    }
}
