//! Matrix multiplications through cuBLASLt's heuristic, as PyTorch, Megatron and Transformer Engine call it.
//!
//! `C[m,n] = A[m,k]·B[k,n]`, row by row in memory, is for cuBLAS the transposed product, column by column: its first
//! operand is what the weight is, its `m` our `n`. Which operand is transposed, in which number formats, scaled how, is the
//! [`recipe`]; [`lt`] talks to the library; [`shapes`] says which to measure.

mod check;
mod grouped;
mod lt;
mod recipe;
mod shapes;

use super::device::{Buffer, Device, Fill, Ring};
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, What};
pub use grouped::Grouped;
use lt::{Call, Handle, Problem};
use recipe::Recipe;

/// Matrix multiplications, one at a time.
#[derive(Default)]
pub struct Matmul {
    handle: Handle,
}

impl Sweep for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver, Library::CublasLt]
    }

    fn plan(&self, machine: &Machine) -> Vec<Job> {
        shapes::matmuls(machine)
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::Matmul { .. })
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let What::Matmul { m, n, k, dtype, layout } = what else { return Err(Skip::because("not a matmul")) };
        let recipe = Recipe::of(dtype, layout).map_err(Skip::because)?;
        let shape = Shape { m: *m, n: *n, k: *k };
        let copies = device.turns(recipe.bytes(shape));
        let operands = Operands::new(device, &recipe, shape, copies)?;
        let workspace = device.alloc(lt::workspace(device.facts().capability))?;
        let call = Call::new(&self.handle, &Problem { recipe, shape, scales: operands.scales() }, device)?;
        Ok(Box::new(Ready { device, call, operands, workspace }))
    }

    fn check(&self, device: &Device) -> Result<Option<String>, Skip> {
        check::check(&self.handle, device).map(Some)
    }
}

/// `C[m,n] = A[m,k]·B[k,n]`, each row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    m: u64,
    n: u64,
    k: u64,
}

/// Operands and results, as many copies as keep them out of the second-level cache.
struct Operands {
    first: Ring,
    second: Ring,
    result: Ring,
    first_scale: Option<Buffer>,
    second_scale: Option<Buffer>,
}

impl Operands {
    fn new(device: &Device, recipe: &Recipe, shape: Shape, copies: usize) -> Result<Self, CudaError> {
        let Shape { m, n, k } = shape;
        let ring = |elements: u64, fill: Fill| device.ring(copies, elements * fill.width() as u64, fill);
        let scale = |count: Option<u64>| count.map(|count| device.random(4 * count, Fill::One)).transpose();
        Ok(Self {
            first: ring(n * k, recipe.first)?,
            second: ring(m * k, recipe.second)?,
            result: ring(m * n, recipe.result)?,
            first_scale: scale(recipe.first_scale.map(|mode| mode.count(n, k)))?,
            second_scale: scale(recipe.second_scale.map(|mode| mode.count(m, k)))?,
        })
    }

    /// Addresses of first operand, second operand and result whose turn it is.
    fn at(&self, turn: usize) -> [u64; 3] {
        [self.first.at(turn), self.second.at(turn), self.result.at(turn)]
    }

    fn scales(&self) -> (u64, u64) {
        let at = |scale: &Option<Buffer>| scale.as_ref().map_or(0, Buffer::pointer);
        (at(&self.first_scale), at(&self.second_scale))
    }
}

struct Ready<'d> {
    device: &'d Device,
    call: Call,
    operands: Operands,
    workspace: Buffer,
}

impl Prepared for Ready<'_> {
    fn launch(&mut self, turn: usize) -> Result<(), CudaError> {
        self.call.run(self.operands.at(turn), &self.workspace, self.device.stream())
    }

    fn algorithm(&self) -> Option<String> {
        Some(self.call.algorithm())
    }
}
