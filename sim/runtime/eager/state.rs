//! The state of eager execution, and the hooks that see it.

use std::fmt::Debug;

use super::main_gradients::{MainGradients, ParamHooks, WeightWork};
use super::megatron::{Context, Later};
use super::offload::Stash;
use super::params::Shared;
use super::ranks::{ExpertRanks, Maxima, TensorGroup, Ulysses, UserBuffers};
use super::storage::{COMPUTE, Counted, Gradient, Leaf, Storage};
use crate::plan::eager::Settings;
use crate::program::{Builder, Category, DType, GroupId, ScopeId, StreamId};
use crate::runtime::compiled::Rotation;
use crate::runtime::optimizer::{Optimizer, Owned};

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

/// An optimizer that steps each parameter as soon as its gradient is there.
#[derive(Clone, Debug)]
pub struct StepAtOnce {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Its scope.
    pub scope: ScopeId,
    /// The parameters, by index.
    pub params: Vec<Owned>,
}

/// A parameter whose gradient has been made, and the gradient, unless a matmul has added it to the main gradients.
pub(super) type Arrived = (usize, Option<(Storage, DType)>);

/// What eager execution knows of graphs.
#[derive(Debug, Default)]
pub struct GraphState {
    /// Gradients of parameters that a graph has made so far; none: none runs.
    pub(super) arrived: Option<Vec<Arrived>>,
    /// What a capture leaves or holds beside its results.
    pub(super) left: Vec<Storage>,
    /// Whether the capturing stream's workspaces of forward and of backward are taken for good.
    pub(super) workspaces: [bool; 2],
}

/// Eager execution: a program under construction, and what is live in it.
#[derive(Debug)]
pub struct Eager {
    /// The program.
    pub program: Builder,
    /// Settings.
    pub settings: Settings,
    pub(super) counted: Vec<Counted>,
    pub(super) idle: Vec<u32>,
    /// Stand-ins for blocks that are not counted.
    pub(super) stand_ins: usize,
    /// Whether the workspaces of forward and of backward are taken for good.
    pub(super) workspaces: [bool; 2],
    /// Parameters that are used several times: their gradients are added up before they are stored.
    pub shared: Vec<Shared>,
    /// By parameter, the sum so far of its gradients, and how many are in it.
    pub(super) shared_sums: Vec<(usize, Gradient, u32)>,
    pub(super) leaves: Vec<Option<Leaf>>,
    pub(super) stash: Stash,
    /// Gradients are stored in this type when no gradient exists yet (`param.grad_dtype`); none: as they arrive.
    pub gradient_dtype: Option<DType>,
    /// The optimizer that steps a parameter as soon as its gradient is there (`register_post_accumulate_grad_hook`).
    pub step_at_once: Option<StepAtOnce>,
    /// Told of each gradient that a leaf has taken (`AccumulateGrad.register_hook`).
    pub hooks: Option<Box<dyn ParamHooks>>,
    /// A framework's hooks around modules that are the model's own.
    pub around: Option<Box<dyn Around>>,
    /// Whether modules' hooks are nodes of autograd's graph, and linears a function written in Python, as under DeepSpeed's
    /// ZeRO-3: a parameter's gradient is stored before its module's input gets one.
    pub hooked: bool,
    /// Parameters whose optimizer state has been made.
    pub(super) stepped: Vec<bool>,
    /// Category of values made from now on.
    pub category: Category,
    /// Whether the host waits for counts of experts' rows only when rows are exchanged ([`Eager::wait_for_counts`]), not
    /// when they are put in order.
    pub counts_later: bool,
    /// The stream that kernels are launched on, and blocks taken for (`torch.cuda.stream`).
    pub stream: StreamId,
    /// The stream of operators that run beside others ([`Op::beside`](crate::model::graph::Op::beside)).
    pub(super) beside: Option<StreamId>,
    /// Whether a collective that is waited for at once is issued on the stream that waits.
    pub(super) in_line: bool,
    /// Counts of experts' rows between the operator that tells them to all ranks and the one that tells the host.
    pub(super) counts: Vec<Storage>,
    /// The tensor-parallel ranks, where the model is split over some.
    pub tensor: Option<TensorGroup>,
    /// The ranks that share a sequence under PyTorch's context parallelism, where some do.
    pub context: Option<Rotation>,
    /// The same under Transformer Engine's.
    pub sequence: Option<Context>,
    /// The same under DeepSpeed.
    pub ulysses: Option<Ulysses>,
    /// The communicator of the ranks that experts are spread over, and its stream, under torchtitan.
    pub spread: Option<(GroupId, StreamId)>,
    /// Gradients of routed experts' weights that are on their way to the leaves, under torchtitan.
    pub(super) routed: Vec<(usize, Storage, DType)>,
    /// The ranks that experts are spread over, under Megatron-Core.
    pub experts: Option<ExpertRanks>,
    /// Megatron's main gradients, to which gradients are added as they are made; none: gradients go to the leaves.
    pub main: Option<MainGradients>,
    /// Weight gradients that a backward in halves leaves for later ([`Eager::run_deferred`]); none: they are made at once.
    pub deferred: Option<Vec<WeightWork>>,
    /// Weight gradients that Transformer Engine's modules leave for later ([`Eager::run_later`]); none: they are made at once.
    pub later: Option<Vec<Later>>,
    /// Whether a backward makes gradients of inputs alone, and keeps what those of parameters take
    /// ([`Eager::backward_weights`]).
    pub inputs_only: bool,
    /// Whether the backward at hand is of a second run by Transformer Engine's checkpoint, which fp8 enters anew.
    pub second_run: bool,
    /// A gradient that a block is given as a view: nothing is added to it in place.
    pub viewed: Option<Storage>,
    /// What compiled functions keep under `no_grad` until the checkpoint around them returns.
    pub(super) lingering: Vec<Storage>,
    /// Of that what goes with a block instead.
    pub(super) lingers_with: Vec<(Storage, Storage)>,
    /// Whether the optimizer has stepped since the last forward: fp8 copies of weights are made anew
    /// (`is_first_microbatch`).
    pub fresh_weights: bool,
    /// Whose maxima of fp8 numbers are reduced, under delayed scaling.
    pub maxima: Option<Maxima>,
    /// The tensor-parallel ranks' user buffers, where they exchange by these beside matmuls.
    pub buffers: Option<UserBuffers>,
    /// Weights in bf16 that autocast's cache holds until autocast ends; none: there is no cache, or autocast is not on.
    pub(super) cast_weights: Option<Vec<Storage>>,
    /// Whether autocast has a cache when it is on.
    pub(super) caches_casts: bool,
    /// What is known of CUDA graphs.
    pub(super) graphs: GraphState,
}

impl Eager {
    /// Starts with an empty program and `params` parameters.
    pub fn new(program: Builder, settings: Settings, params: usize) -> Self {
        Eager {
            program,
            settings,
            counted: vec![],
            idle: vec![],
            stand_ins: 0,
            workspaces: [false; 2],
            shared: vec![],
            shared_sums: vec![],
            leaves: vec![None; params],
            stash: Stash::default(),
            gradient_dtype: None,
            step_at_once: None,
            hooks: None,
            around: None,
            hooked: false,
            stepped: vec![false; params],
            category: Category::Activation,
            counts_later: false,
            stream: COMPUTE,
            beside: None,
            in_line: false,
            counts: vec![],
            tensor: None,
            context: None,
            sequence: None,
            ulysses: None,
            spread: None,
            routed: vec![],
            experts: None,
            main: None,
            deferred: None,
            later: None,
            inputs_only: false,
            second_run: false,
            viewed: None,
            lingering: vec![],
            lingers_with: vec![],
            fresh_weights: false,
            maxima: None,
            buffers: None,
            cast_weights: None,
            caches_casts: false,
            graphs: GraphState::default(),
        }
    }
}
