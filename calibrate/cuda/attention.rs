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

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use backward::Backward;
use forward::Forward;
use shape::Shape;
use tensors::Tensors;

use super::cudnn::{Api, Call, Handle, Plan, Target, Tensor};
use super::device::{Buffer, Device};
use super::error::CudaError;
use super::library::Library;
use super::sweep::{Prepared, Skip, Sweep};
use crate::plan::Job;
use crate::points::{Machine, What};

/// cuDNN's attention.
#[derive(Default)]
pub struct Attention {
    open: RefCell<Option<Open>>,
}

/// cuDNN on a stream, and what it has planned: compiling a kernel takes a good part of a second.
struct Open {
    stream: Arc<CudaStream>,
    api: Rc<Api>,
    target: Target,
    plans: BTreeMap<(Shape, bool), Rc<Plan>>,
}

impl Open {
    fn new(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        let api = Api::load()?;
        let target = Target::Handle(Rc::new(Handle::new(&api, stream)?));
        Ok(Self { stream: stream.clone(), api, target, plans: BTreeMap::new() })
    }
}

impl Attention {
    /// The plan of a shape, made the first time it is asked for.
    fn planned(&self, device: &Device, shape: &Shape, backward: bool) -> Result<Rc<Plan>, CudaError> {
        let mut open = self.open.borrow_mut();
        let known = open.take().filter(|open| Arc::ptr_eq(&open.stream, device.stream()));
        let open = open.insert(known.map_or_else(|| Open::new(device.stream()), Ok)?);
        if let Some(plan) = open.plans.get(&(*shape, backward)) {
            return Ok(plan.clone());
        }
        let graph = if backward { Backward::new(shape).graph } else { Forward::new(shape).graph };
        let plan = Rc::new(Plan::new(&open.api, &open.target, &graph)?);
        open.plans.insert((*shape, backward), plan.clone());
        Ok(plan)
    }

    /// A kernel whose results are right.
    fn ready(&self, device: &Device, shape: &Shape, backward: bool) -> Result<Ready, Refused> {
        device.context().bind_to_thread().map_err(CudaError::from)?;
        let forward = self.planned(device, shape, false)?;
        let backward = if backward { Some(self.planned(device, shape, true)?) } else { None };
        let (buffer, all) = Tensors::make(device, shape, backward.is_some())?;

        let mut ready = Ready::new(device, forward, vec![buffer])?;
        let names = Forward::new(shape);
        for tensors in &all {
            ready.add(&[
                (names.q, tensors.q),
                (names.k, tensors.k),
                (names.v, tensors.v),
                (names.o, tensors.o),
                (names.statistics, tensors.statistics),
            ])?;
        }
        // Every turn once: backward reads what forward wrote.
        for turn in 0..all.len() {
            ready.launch(turn)?;
        }
        check::forward(device, shape, &all[0]).map_err(Refused::Wrong)?;
        let Some(backward) = backward else { return Ok(ready) };

        let names = Backward::new(shape);
        let mut ready = Ready::new(device, backward, ready.buffers)?;
        for tensors in &all {
            let Some(gradients) = tensors.backward else { continue };
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
        check::backward(device, shape, &all[0]).map_err(Refused::Wrong)?;
        Ok(ready)
    }
}

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

    /// Small shapes of every kind, in which a mask that is off by one shows.
    fn check(&self, device: &Device) -> Result<Option<String>, Skip> {
        let (mut checked, mut left_out) = (0, vec![]);
        for (name, shape) in plan::small() {
            for backward in [false, true] {
                match self.ready(device, &shape, backward) {
                    Ok(_) => checked += 1,
                    Err(Refused::Wrong(skip)) => return Err(skip),
                    Err(Refused::Unable(skip)) => {
                        left_out.push(format!("\n  no {name} {}: {}", pass(backward), skip.why))
                    }
                }
            }
        }
        if checked == 0 {
            return Err(Skip::because(format!("nothing could be compared{}", left_out.concat())));
        }
        Ok(Some(format!("{checked} kernels compute attention as it is defined{}", left_out.concat())))
    }

    fn prepare<'d>(&self, device: &'d Device, what: &What) -> Result<Box<dyn Prepared + 'd>, Skip> {
        let (shape, backward) = Shape::of(what).map_err(Skip::because)?;
        match self.ready(device, &shape, backward) {
            Ok(ready) => Ok(Box::new(ready)),
            Err(Refused::Unable(skip) | Refused::Wrong(skip)) => Err(skip),
        }
    }
}

/// Why there is no kernel to time.
enum Refused {
    /// cuDNN has none, or it does not fit.
    Unable(Skip),
    /// It computes something else.
    Wrong(Skip),
}

impl From<CudaError> for Refused {
    fn from(error: CudaError) -> Self {
        Self::Unable(error.into())
    }
}

fn pass(backward: bool) -> &'static str {
    if backward { "backward" } else { "forward" }
}

/// A plan with a call for each turn, and the memory that they use.
struct Ready {
    calls: Vec<Call>,
    plan: Rc<Plan>,
    workspace: u64,
    buffers: Vec<Buffer>,
}

impl Ready {
    fn new(device: &Device, plan: Rc<Plan>, mut buffers: Vec<Buffer>) -> Result<Self, CudaError> {
        let workspace = device.alloc(plan.workspace)?;
        let address = workspace.pointer();
        buffers.push(workspace);
        Ok(Self { calls: vec![], plan, workspace: address, buffers })
    }

    fn add(&mut self, addresses: &[(Tensor, u64)]) -> Result<(), CudaError> {
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
