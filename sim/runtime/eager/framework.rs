//! What each framework adds to the state of eager execution: one struct each, of which a program has one
//! ([`FrameworkState`](super::FrameworkState)).
//!
//! To add a framework: a struct here, a variant of `FrameworkState`, and the arms that the compiler then asks for. State that
//! one framework has alone goes into its struct, never into [`Eager`](super::Eager). Those whose hooks are handed the engine
//! (`Around`) stand beside it.

use super::main_gradients::{MainGradients, ParamHooks, WeightWork};
use super::megatron::{Context, Later};
use super::ranks::{ExpertRanks, Maxima, TensorGroup, UserBuffers};
use super::storage::Storage;
use crate::program::{DType, GroupId, ScopeId, StreamId};
use crate::runtime::optimizer::{Optimizer, Owned};

/// The mesh axis of tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorAxis {
    /// Its ranks.
    pub group: TensorGroup,
    /// The type in which gradients of norms are summed over the ranks, where each has a part of the sequence.
    pub norms: Option<DType>,
}

/// The mesh axis that torchtitan's experts are distributed over.
#[derive(Debug)]
pub struct ExpertAxis {
    /// The communicator of its ranks.
    pub group: GroupId,
    /// The stream of what they exchange.
    pub stream: StreamId,
    /// Gradients of experts' weights on their way to the leaves: the parameter, its gradient and that one's type.
    pub(super) on_their_way: Vec<(usize, Storage, DType)>,
}

impl ExpertAxis {
    /// Ranks that exchange rows on a stream.
    pub fn new(group: GroupId, stream: StreamId) -> ExpertAxis {
        ExpertAxis { group, stream, on_their_way: vec![] }
    }
}

/// An optimizer that steps each parameter as soon as its gradient is there.
#[derive(Debug)]
pub struct StepAtOnce {
    pub(super) optimizer: Optimizer,
    pub(super) scope: ScopeId,
    /// The parameters, by index.
    pub(super) params: Vec<Owned>,
    /// Parameters whose optimizer state has been made.
    pub(super) has_state: Vec<bool>,
}

impl StepAtOnce {
    /// An optimizer in its scope, of all `params` in order.
    pub fn new(optimizer: Optimizer, scope: ScopeId, params: Vec<Owned>) -> StepAtOnce {
        StepAtOnce { optimizer, scope, has_state: vec![false; params.len()], params }
    }
}

/// InternEvo.
#[derive(Debug)]
pub struct InternEvo {
    /// The tensor-parallel ranks, where there are several.
    pub tensor: Option<TensorGroup>,
    /// Told of each gradient that a leaf has taken (`AccumulateGrad.register_hook`).
    pub hooks: Box<dyn ParamHooks>,
}

/// nanotron.
#[derive(Debug)]
pub struct Nanotron {
    /// The tensor-parallel ranks, where there are several.
    pub tensor: Option<TensorGroup>,
    /// Told of each gradient that a leaf has taken, where DDP reduces buckets of them.
    pub hooks: Option<Box<dyn ParamHooks>>,
}

/// Megatron-Core.
#[derive(Debug)]
pub struct Megatron {
    /// The main gradients, to which gradients are added as they are made.
    pub main: MainGradients,
    /// The tensor-parallel ranks, where there are several.
    pub tensor: Option<TensorGroup>,
    /// The ranks that share a sequence, where some do (Transformer Engine's context parallelism).
    pub context: Option<Context>,
    /// The tensor-parallel ranks' user buffers, where they exchange by these while matmuls run.
    pub buffers: Option<UserBuffers>,
    /// How rows get to experts, where the model has some.
    pub experts: Option<Experts>,
    /// The stream of operators that overlap with others ([`Op::side_stream`](crate::model::graph::Op::side_stream)), where some do.
    pub side: Option<SideStream>,
    /// What modules in fp8 know of the step.
    pub fp8: Fp8,
    /// When weight gradients are made.
    pub weights: WeightGradients,
    /// A gradient that a block is given as a view: nothing is added to it in place.
    pub viewed: Option<Storage>,
    /// What compiled functions keep under `no_grad` until the checkpoint around them returns.
    pub(super) lingering: Vec<Storage>,
    /// CUDA graphs of blocks.
    pub(super) graphs: CudaGraphs,
}

impl Megatron {
    /// One rank of everything, which adds gradients to these main gradients.
    pub fn new(main: MainGradients) -> Megatron {
        Megatron {
            main,
            tensor: None,
            context: None,
            buffers: None,
            experts: None,
            side: None,
            fp8: Fp8::default(),
            weights: WeightGradients::AtOnce,
            viewed: None,
            lingering: vec![],
            graphs: CudaGraphs::default(),
        }
    }
}

/// How rows get to experts under Megatron-Core, and the counts of rows on their way to the host.
#[derive(Debug)]
pub struct Experts {
    /// Who exchanges what.
    pub ranks: ExpertRanks,
    /// Counts of rows between the operator that tells them to all ranks and the one that tells the host.
    pub(super) counts: Vec<Storage>,
    /// Whether the host waits for the counts only when rows are exchanged
    /// ([`Eager::wait_for_counts`](super::Eager::wait_for_counts)), not when they are put in order.
    pub(super) counts_later: bool,
}

impl Experts {
    /// Ranks that exchange rows.
    pub fn new(ranks: ExpertRanks) -> Experts {
        Experts { ranks, counts: vec![], counts_later: false }
    }
}

/// A stream whose operators overlap with those of the default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideStream {
    /// The stream.
    pub stream: StreamId,
    /// Whether a collective that is waited for at once is issued on the stream that waits, as PyTorch does from 2.8 on
    /// (pytorch/pytorch#150398). With one queue to the device a wait for another stream holds up what would overlap.
    pub in_line: bool,
}

/// What Transformer Engine's modules in fp8 know of the step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fp8 {
    /// Whether the optimizer has stepped since the last forward: fp8 copies of weights are made anew
    /// (`is_first_microbatch`).
    pub fresh_weights: bool,
    /// Whose maxima of fp8 numbers are reduced, under delayed scaling.
    pub maxima: Option<Maxima>,
    /// Whether the backward at hand is of a second run by Transformer Engine's checkpoint, which fp8 enters anew.
    pub second_run: bool,
}

/// When weight gradients are made.
#[derive(Debug, Default)]
pub enum WeightGradients {
    /// In the backward of their linear.
    #[default]
    AtOnce,
    /// Later: a backward in halves leaves them for [`Eager::run_deferred`](super::Eager::run_deferred).
    Deferred(Vec<WeightWork>),
    /// Later: Transformer Engine's modules leave them for [`Eager::run_later`](super::Eager::run_later).
    Delayed(Vec<Later>),
}

impl WeightGradients {
    /// The list that a backward in halves has left; from now on they are made at once.
    pub fn take_deferred(&mut self) -> Vec<WeightWork> {
        match std::mem::take(self) {
            WeightGradients::Deferred(list) => list,
            WeightGradients::AtOnce | WeightGradients::Delayed(_) => vec![],
        }
    }

    /// The list that Transformer Engine's modules have left; from now on they are made at once.
    pub fn take_delayed(&mut self) -> Vec<Later> {
        match std::mem::take(self) {
            WeightGradients::Delayed(list) => list,
            WeightGradients::AtOnce | WeightGradients::Deferred(_) => vec![],
        }
    }
}

/// A parameter whose gradient has been made, and the gradient, unless a matmul has added it to the main gradients.
pub(super) type Arrived = (usize, Option<(Storage, DType)>);

/// What is known of CUDA graphs.
#[derive(Debug, Default)]
pub(super) struct CudaGraphs {
    /// Gradients of parameters that a graph has made so far; none: none runs.
    pub(super) arrived: Option<Vec<Arrived>>,
    /// What a capture leaves or holds besides its results.
    pub(super) left: Vec<Storage>,
    /// Whether the capturing stream's workspaces of forward and of backward are taken for good.
    pub(super) workspaces: [bool; 2],
}
