//! Fused attention, forward and backward, through cuDNN's graph API.
//!
//! What frameworks call: bf16, causal and full, heads 64 to 256 wide, with fewer key-value heads, with values narrower than
//! keys, with a sliding window. Before a kernel is timed, rows of its results are compared with the definition
//! ([`check`]); a kernel that is wrong is not timed. To add a shape: a line in [`plan`].

mod backward;
mod check;
mod forward;
mod plan;
mod reference;
mod shape;
mod tensors;

#[cfg(test)]
mod tests;

use std::rc::Rc;

use backward::Backward;
use forward::Forward;
use shape::Shape;
use tensors::Tensors;

use super::cudnn::{Api, Call, Handle, Plan, Target};
use super::device::{Buffer, Device};
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Job, Prepared, Skip, Sweep};
use crate::points::{Machine, What};

/// cuDNN's attention.
pub struct Attention;

impl Sweep for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn needs(&self) -> &'static [Library] {
        &[Library::Driver, Library::Cudnn]
    }

    fn plan(&self, machine: &Machine) -> Vec<Job> {
        plan::plan(machine)
    }

    fn measures(&self, what: &What) -> bool {
        matches!(what, What::Attention { .. })
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let (shape, backward) = Shape::of(what).map_err(Skip::because)?;
        device.context().bind_to_thread().map_err(CudaError::from)?;
        let api = Api::load()?;
        let target = Target::Handle(Rc::new(Handle::new(&api, device.stream())?));
        let (buffer, all) = Tensors::make(device, &shape, backward)?;

        let mut ready = Ready::new(device, Plan::new(&api, &target, &Forward::new(&shape).graph)?, vec![buffer])?;
        let names = Forward::new(&shape);
        for tensors in &all {
            let addresses = [(names.q, tensors.q), (names.k, tensors.k), (names.v, tensors.v), (names.o, tensors.o)];
            ready.add(&[&addresses[..], &[(names.statistics, tensors.statistics)]].concat())?;
        }
        // Every turn once: backward reads what forward wrote.
        for turn in 0..all.len() {
            ready.launch(turn)?;
        }
        check::forward(device, &shape, &all[0])?;
        if !backward {
            return Ok(Box::new(ready));
        }

        let names = Backward::new(&shape);
        let mut ready = Ready::new(device, Plan::new(&api, &target, &names.graph)?, ready.buffers)?;
        for tensors in &all {
            let Some(gradients) = tensors.backward else { return Err(Skip::because("no room for gradients")) };
            ready.add(&[
                (names.q, tensors.q),
                (names.k, tensors.k),
                (names.v, tensors.v),
                (names.o, tensors.o),
                (names.statistics, tensors.statistics),
                (names.d_o, gradients.d_o),
                (names.dq, gradients.dq),
                (names.dk, gradients.dk),
                (names.dv, gradients.dv),
                (names.delta, gradients.delta),
                (names.dq_sum, gradients.dq_sum),
            ])?;
        }
        ready.launch(0)?;
        check::backward(device, &shape, &all[0])?;
        Ok(Box::new(ready))
    }
}

/// A plan with a call for each turn, and the memory that they use.
struct Ready {
    calls: Vec<Call>,
    plan: Plan,
    workspace: u64,
    buffers: Vec<Buffer>,
}

impl Ready {
    fn new(device: &Device, plan: Plan, mut buffers: Vec<Buffer>) -> Result<Self, CudaError> {
        let workspace = device.alloc(plan.workspace)?;
        let address = workspace.pointer();
        buffers.push(workspace);
        Ok(Self { calls: vec![], plan, workspace: address, buffers })
    }

    fn add(&mut self, addresses: &[(super::cudnn::Tensor, u64)]) -> Result<(), CudaError> {
        self.calls.push(self.plan.bind(addresses, self.workspace)?);
        Ok(())
    }
}

impl Prepared for Ready {
    fn launch(&mut self, turn: usize) -> Result<(), CudaError> {
        self.plan.run(&self.calls[turn % self.calls.len()])
    }

    fn algorithm(&self) -> Option<String> {
        Some(self.plan.algorithm.clone())
    }
}
