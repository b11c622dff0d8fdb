//! The state of eager execution: what autograd of any program has, and what the framework at hand adds
//! ([`framework`](super::framework)).

use std::fmt::Debug;

use super::casts::Autocast;
use super::framework::{ExpertAxis, InternEvo, Megatron, Nanotron, StepAtOnce, TensorAxis};
use super::offload::Stash;
use super::ranks::{TensorGroup, Ulysses};
use super::storage::{COMPUTE, Leaves, Storages};
use crate::plan::eager::Settings;
use crate::program::{Builder, Category, StreamId};
use crate::runtime::compiled::Rotation;

/// An operator of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The model's index of its graph's first parameter, which says which graph it is.
    pub graph: usize,
    /// Its index in the graph.
    pub op: usize,
    /// Whether it is its backward.
    pub backward: bool,
}

/// A framework's hooks. What they issue stands in host order where they are called.
pub trait Around: Debug {
    /// An operator is about to run.
    fn begins(&mut self, _eager: &mut Eager, _at: Place) {}
    /// It has run.
    fn ended(&mut self, _eager: &mut Eager, _at: Place) {}
    /// A leaf has taken a parameter's gradient.
    fn arrived(&mut self, eager: &mut Eager, param: usize);
}

/// A training loop of PyTorch's own parts: DTensor, `fully_shard`, pipelining; torchtitan's among others.
#[derive(Debug, Default)]
pub struct Torch {
    /// The mesh axis that DTensors are split over, where some are.
    pub tensor: Option<TensorAxis>,
    /// The ranks that share a sequence, where some do.
    pub context: Option<Rotation>,
    /// The ranks that torchtitan's experts are distributed over, where they are.
    pub experts: Option<ExpertAxis>,
    /// The optimizer that steps a parameter as soon as its gradient is there (`register_post_accumulate_grad_hook`).
    pub step_at_once: Option<StepAtOnce>,
    /// `DistributedDataParallel`, which is told of each gradient that a leaf has taken.
    pub hooks: Option<Box<dyn Around>>,
    /// Whether a backward makes gradients of inputs alone, and keeps what those of parameters take
    /// ([`Eager::backward_weights`](Eager::backward_weights)).
    pub inputs_only: bool,
}

/// DeepSpeed.
#[derive(Debug)]
pub struct DeepSpeed {
    /// The hooks of its ZeRO; none only while they are called.
    pub(super) hooks: Option<Box<dyn Around>>,
    /// Whether modules' hooks are nodes of autograd's graph, and linears a function written in Python, as under ZeRO-3: a
    /// parameter's gradient is stored before its module's input gets one.
    pub(super) hooks_modules: bool,
    /// The ranks that share a sequence, where some do.
    pub(super) ulysses: Option<Ulysses>,
}

impl DeepSpeed {
    /// Its hooks, on modules or on gradients alone, and the ranks that share a sequence.
    pub fn new(hooks: Box<dyn Around>, hooks_modules: bool, ulysses: Option<Ulysses>) -> DeepSpeed {
        DeepSpeed { hooks: Some(hooks), hooks_modules, ulysses }
    }
}

/// The framework that a program is of, with the state that it alone has.
#[derive(Debug)]
pub enum FrameworkState {
    /// PyTorch's own parts.
    Torch(Torch),
    /// DeepSpeed.
    DeepSpeed(DeepSpeed),
    /// InternEvo.
    InternEvo(InternEvo),
    /// nanotron.
    Nanotron(Nanotron),
    /// Megatron-Core.
    Megatron(Box<Megatron>),
}

impl FrameworkState {
    /// The tensor-parallel ranks, where the model is split over some.
    pub fn tensor(&self) -> Option<TensorGroup> {
        match self {
            FrameworkState::Torch(torch) => torch.tensor.map(|axis| axis.group),
            FrameworkState::DeepSpeed(_) => None,
            FrameworkState::InternEvo(internevo) => internevo.tensor,
            FrameworkState::Nanotron(nanotron) => nanotron.tensor,
            FrameworkState::Megatron(megatron) => megatron.tensor,
        }
    }

    /// What a program of PyTorch's own parts has.
    pub fn torch(&self) -> Option<&Torch> {
        if let FrameworkState::Torch(torch) = self { Some(torch) } else { None }
    }

    /// The same, to be changed.
    pub fn torch_mut(&mut self) -> Option<&mut Torch> {
        if let FrameworkState::Torch(torch) = self { Some(torch) } else { None }
    }

    /// The hooks that a framework has around operators and on gradients; none only while they are called.
    pub(super) fn hooks_mut(&mut self) -> Option<&mut Option<Box<dyn Around>>> {
        match self {
            FrameworkState::Torch(torch) => Some(&mut torch.hooks),
            FrameworkState::DeepSpeed(deepspeed) => Some(&mut deepspeed.hooks),
            FrameworkState::InternEvo(_) | FrameworkState::Nanotron(_) | FrameworkState::Megatron(_) => None,
        }
    }

    /// What a program of DeepSpeed's has.
    pub(super) fn deepspeed(&self) -> Option<&DeepSpeed> {
        if let FrameworkState::DeepSpeed(deepspeed) = self { Some(deepspeed) } else { None }
    }

    /// The same, to be changed.
    pub(super) fn deepspeed_mut(&mut self) -> Option<&mut DeepSpeed> {
        if let FrameworkState::DeepSpeed(deepspeed) = self { Some(deepspeed) } else { None }
    }

    /// What a program of Megatron-Core's has.
    pub fn megatron(&self) -> Option<&Megatron> {
        if let FrameworkState::Megatron(megatron) = self { Some(megatron) } else { None }
    }

    /// The same, to be changed.
    pub fn megatron_mut(&mut self) -> Option<&mut Megatron> {
        if let FrameworkState::Megatron(megatron) = self { Some(megatron) } else { None }
    }
}

/// Eager execution: a program under construction, and what is live in it.
#[derive(Debug)]
pub struct Eager {
    /// The program.
    pub program: Builder,
    /// Settings.
    pub settings: Settings,
    /// Device memory, counted by reference.
    pub(super) storages: Storages,
    /// Whether the workspaces of forward and of backward are taken for good.
    pub(super) workspaces: [bool; 2],
    /// Gradients of parameters.
    pub leaves: Leaves,
    /// Values sent to the host's memory.
    pub(super) stash: Stash,
    /// The cache of autocast.
    pub(super) autocast: Autocast,
    /// Category of values made from now on.
    pub category: Category,
    /// The stream that kernels are launched on, and storages taken for (`torch.cuda.stream`).
    pub stream: StreamId,
    /// What the framework adds.
    pub framework: FrameworkState,
}

impl Eager {
    /// Starts with an empty program and `params` parameters.
    pub fn new(program: Builder, settings: Settings, params: usize, framework: FrameworkState) -> Self {
        Eager {
            program,
            settings,
            storages: Storages::default(),
            workspaces: [false; 2],
            leaves: Leaves::new(params),
            stash: Stash::default(),
            autocast: Autocast::Uncached,
            category: Category::Activation,
            stream: COMPUTE,
            framework,
        }
    }
}
