//! Eager PyTorch: runs a module's forward operators, keeps what autograd keeps, and derives the backward.
//!
//! What decides peak memory is when each block is taken and given back, so this follows the host order of
//! `torch/csrc/autograd/engine.cpp`: nodes run in reverse order of creation; a node's inputs (gradients of its outputs)
//! and saved tensors live until the node has allocated its results; a second gradient for the same value is added out
//! of place unless the first is free to be written to; a parameter's gradient is stored as soon as it is made. Values are reference-counted: Python's variables
//! hold one reference, every operator that saves a value holds another.
//!
//! Forward rules are in [`forward`], backward rules in [`backward`]; to add an operator, add its kind to
//! `model::graph::OpKind` and one arm to each.

mod accumulator;
mod again;
pub mod around;
mod autocast;
mod auxiliary;
mod backward;
mod beside;
mod choice;
mod chunked_loss;
mod compiled_cross_entropy;
mod composite;
mod cross_entropy;
mod embedding;
mod experts;
mod flash_cross_entropy;
mod flex;
pub(super) mod forward;
mod frame;
mod fused_linear;
mod graphs;
mod halves;
mod internlm;
mod keep;
mod leaves;
pub mod main_gradients;
mod megatron;
mod nanotron;
mod norm;
pub mod offload;
mod parallel_cross_entropy;
mod recompute;
mod redistribute;
mod reentrant;
mod rotary;
mod shared;
mod stamp;
mod titan;
mod ulysses;
mod unpad;
mod vocabulary;
mod written;

pub use frame::Frame;
pub use halves::Named;
pub use keep::{Keep, Saved, SavedOps};
use leaves::Leaf;
pub use leaves::StepAtOnce;
use main_gradients::{MainGradients, ParamHooks, WeightWork};
pub use megatron::fp8::{self, Maxima};
pub use megatron::later::Later;
pub use megatron::spread;
pub use megatron::{
    BUFFER_STREAMS, Context, DISPATCHERS, Dispatcher, ExpertRanks, Heads, Parts, Ring, Routing, Stage, UserBuffers,
    WAYS, Way, crosses,
};
pub use norm::LayerNorm;
use offload::{Offload, Stash};
pub use redistribute::TensorGroup;
pub use reentrant::Reentrant;
pub use shared::Shared;
pub use stamp::{Blocks, Stamps};
pub use ulysses::Ulysses;

use crate::model::experts::ExpertOp;
use crate::model::graph::{Graph, OpKind, ValueId};
use crate::model::style::NormCode;
use crate::program::{BufferId, Builder, Category, DType, Dispatch, GroupId, MemoryKind, StreamId, Work};
use crate::runtime::compiled::Rotation;
use crate::units::Bytes;

/// The default stream, on which all eager operators run.
pub const COMPUTE: StreamId = StreamId(0);

/// A reference-counted block of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage(u32);

#[derive(Clone, Copy, Debug)]
struct Counted {
    buffer: BufferId,
    references: u32,
    bytes: u64,
}

/// How a forward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Autograd saves what backward needs.
    Train,
    /// Under activation checkpointing: nothing is saved but what the policy keeps.
    Checkpoint(Keep),
}

/// Settings of eager execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// cuBLAS workspace, taken and given back by each matmul \[B\].
    pub workspace: u64,
    /// Whether the workspace stays taken once a thread has used it (PyTorch 2.6: one for forward, one for the thread of
    /// the backward) instead of being given back after each matmul (2.15).
    pub persistent_workspace: bool,
    /// Whether RMSNorm is one kernel (PyTorch 2.15) or composed of pointwise ones (2.6).
    pub fused_rms_norm: bool,
    /// How it is composed, where it is.
    pub norm_code: NormCode,
    /// Whose kernels LayerNorm is.
    pub layer_norm: LayerNorm,
    /// Whether biases on attention scores (ALiBi) are a tensor given to `scaled_dot_product_attention`, which then runs
    /// the memory-efficient kernel, or slopes inside a flash kernel.
    pub bias_tensor: bool,
    /// Multiprocessors of the chip, which size the buffers of reductions.
    pub multiprocessors: u32,
    /// Whether a recompute stops once backward has all it needs (`torch.utils.checkpoint`, `early_stop`).
    pub early_stop: bool,
    /// Whether every block of a head adds up a gradient of queries of its own (FlashAttention 2's deterministic backward).
    pub copies_gradients: bool,
    /// Whether every call of attention first reads an answer back from the device (transformers' flash attention asks
    /// whether positions are packed).
    pub attention_reads_back: bool,
    /// Whether attention is FlexAttention, compiled on its own ([`flex`]).
    pub flex_attention: bool,
    /// Whether the logits go once they are cast for the loss: no variable names them.
    pub unnamed_logits: bool,
    /// Where inputs of checkpointed blocks are kept, if not on the device.
    pub offload: Option<Offload>,
    /// Launch class of forward operators: eager, or compiled.
    pub forward: Dispatch,
    /// Launch class of backward operators.
    pub backward: Dispatch,
}

/// Where a graph's parameters are among the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamMap {
    /// The model's index of the graph's first parameter.
    pub first: usize,
    /// Parameters of the graph (by their local index) that are others of the model's.
    pub tied: [Option<(usize, usize)>; 2],
}

impl From<usize> for ParamMap {
    /// Parameters that are the model's from `first` on.
    fn from(first: usize) -> ParamMap {
        ParamMap { first, tied: [None; 2] }
    }
}

impl ParamMap {
    /// The model's index of a graph's parameter.
    pub fn index(&self, local: usize) -> usize {
        let tied = self.tied.iter().flatten().find(|&&(tied, _)| tied == local);
        tied.map_or(self.first + local, |&(_, target)| target)
    }
}

/// The gradient of a value, on its way to the node that made the value.
#[derive(Clone, Copy, Debug)]
struct Gradient {
    storage: Storage,
    /// A matmul's input gradient, which autograd passes on through a view, or a DTensor: nothing is added to it in place.
    view: bool,
}

impl From<Storage> for Gradient {
    fn from(storage: Storage) -> Self {
        Gradient { storage, view: false }
    }
}

/// Eager execution: a program under construction, and what is live in it.
#[derive(Debug)]
pub struct Eager {
    /// The program.
    pub program: Builder,
    /// Settings.
    pub settings: Settings,
    counted: Vec<Counted>,
    idle: Vec<u32>,
    /// Stand-ins for blocks that are not counted.
    stand_ins: usize,
    /// Whether the workspaces of forward and of backward are taken for good.
    workspaces: [bool; 2],
    /// Parameters that are used several times: their gradients are added up before they are stored.
    pub shared: Vec<Shared>,
    /// By parameter, the sum so far of its gradients, and how many are in it.
    shared_sums: Vec<(usize, Gradient, u32)>,
    leaves: Vec<Option<Leaf>>,
    stash: Stash,
    /// Gradients are stored in this type when no gradient exists yet (`param.grad_dtype`); none: as they arrive.
    pub gradient_dtype: Option<DType>,
    /// The optimizer that steps a parameter as soon as its gradient is there (`register_post_accumulate_grad_hook`).
    pub step_at_once: Option<StepAtOnce>,
    /// Told of each gradient that a leaf has taken (`AccumulateGrad.register_hook`).
    pub hooks: Option<Box<dyn ParamHooks>>,
    /// A framework's hooks around modules that are the model's own.
    pub around: Option<Box<dyn around::Around>>,
    /// Whether modules' hooks are nodes of autograd's graph, and linears a function written in Python, as under DeepSpeed's
    /// ZeRO-3: a parameter's gradient is stored before its module's input gets one.
    pub hooked: bool,
    /// Parameters whose optimizer state has been made.
    stepped: Vec<bool>,
    /// Category of values made from now on.
    pub category: Category,
    /// Whether the host waits for counts of experts' rows only when rows are exchanged ([`Eager::wait_for_counts`]), not
    /// when they are put in order.
    pub counts_later: bool,
    /// The stream that kernels are launched on, and blocks taken for (`torch.cuda.stream`).
    pub stream: StreamId,
    /// The stream of operators that run beside others ([`Op::beside`](crate::model::graph::Op::beside)).
    beside: Option<StreamId>,
    /// Whether a collective that is waited for at once is issued on the stream that waits.
    in_line: bool,
    /// Counts of experts' rows between the operator that tells them to all ranks and the one that tells the host.
    counts: Vec<Storage>,
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
    routed: Vec<(usize, Storage, DType)>,
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
    lingering: Vec<Storage>,
    /// Of that what goes with a block instead.
    lingers_with: Vec<(Storage, Storage)>,
    /// Whether the optimizer has stepped since the last forward: fp8 copies of weights are made anew
    /// (`is_first_microbatch`).
    pub fresh_weights: bool,
    /// Whose maxima of fp8 numbers are reduced, under delayed scaling.
    pub maxima: Option<Maxima>,
    /// The tensor-parallel ranks' user buffers, where they exchange by these beside matmuls.
    pub buffers: Option<UserBuffers>,
    /// Weights in bf16 that autocast's cache holds until autocast ends; none: there is no cache, or autocast is not on.
    cast_weights: Option<Vec<Storage>>,
    /// Whether autocast has a cache when it is on.
    caches_casts: bool,
    /// What is known of CUDA graphs.
    graphs: graphs::State,
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
            graphs: graphs::State::default(),
        }
    }

    /// Takes a block with one reference.
    pub fn storage(&mut self, bytes: u64, name: &'static str) -> Storage {
        self.storage_as(bytes, self.category, name)
    }

    /// Takes a block of a stated category with one reference.
    pub fn storage_as(&mut self, bytes: u64, category: Category, name: &'static str) -> Storage {
        self.storage_on(self.stream, bytes, category, name)
    }

    /// Takes a block from a stream's pool with one reference.
    fn storage_on(&mut self, stream: StreamId, bytes: u64, category: Category, name: &'static str) -> Storage {
        let buffer = self.program.alloc(Bytes(bytes), stream, category, name);
        self.number(Counted { buffer, references: 1, bytes })
    }

    /// Finds a place for a block's references.
    fn number(&mut self, counted: Counted) -> Storage {
        match self.idle.pop() {
            Some(index) => {
                self.counted[index as usize] = counted;
                Storage(index)
            }
            None => {
                self.counted.push(counted);
                Storage(self.counted.len() as u32 - 1)
            }
        }
    }

    /// A stand-in for a block that is not counted (the token ids, which live for the whole run).
    pub fn borrowed(&mut self) -> Storage {
        self.stand_ins += 1;
        self.counted.push(Counted { buffer: BufferId(0), references: u32::MAX / 2, bytes: 0 });
        Storage(self.counted.len() as u32 - 1)
    }

    /// One more reference.
    pub fn retain(&mut self, storage: Storage) -> Storage {
        self.counted[storage.0 as usize].references += 1;
        storage
    }

    /// One reference fewer; the last gives the block back.
    pub fn release(&mut self, storage: Storage) {
        let counted = &mut self.counted[storage.0 as usize];
        counted.references -= 1;
        if counted.references == 0 {
            let buffer = counted.buffer;
            while let Some(at) = self.lingers_with.iter().position(|&(with, _)| with == storage) {
                let (_, lingering) = self.lingers_with.remove(at);
                self.release(lingering);
            }
            self.idle.push(storage.0);
            self.program.free(buffer);
        }
    }

    /// One more reference to a value of a running frame.
    pub fn hold(&mut self, frame: &Frame, value: ValueId) -> Storage {
        let storage = frame.slots[value].expect("a value just made is live");
        self.retain(storage)
    }

    /// Hands a block over to a buffer that outlives the step; nobody else may hold it.
    pub fn hand_over(&mut self, storage: Storage, to: BufferId) {
        let counted = &mut self.counted[storage.0 as usize];
        assert_eq!(counted.references, 1, "a block is handed over by its only holder");
        counted.references = 0;
        let from = counted.buffer;
        self.idle.push(storage.0);
        self.program.rename(from, to);
    }

    /// Bytes of a block.
    pub(in crate::runtime) fn bytes(&self, storage: Storage) -> u64 {
        self.counted[storage.0 as usize].bytes
    }

    /// Launches a kernel bounded by memory.
    pub fn pointwise(&mut self, name: &'static str, kind: MemoryKind, read: u64, written: u64, dispatch: Dispatch) {
        let work = Work::Memory { kind, read: Bytes(read), written: Bytes(written) };
        self.program.launch(self.stream, name, work, dispatch);
    }

    /// A copy of a block of so many bytes.
    fn copy_of(&mut self, name: &'static str, bytes: u64, backward: bool) -> Storage {
        if backward {
            let copy = self.temporary(bytes, name);
            self.pointwise(name, MemoryKind::Copy, bytes, bytes, self.settings.backward);
            return copy;
        }
        let copy = self.storage(bytes, name);
        self.pointwise(name, MemoryKind::Copy, bytes, bytes, self.settings.forward);
        copy
    }

    /// Adds up two gradients of one value: in place if nobody else holds the earlier one and it is no view, else out of
    /// place (`torch/csrc/autograd/input_buffer.cpp`).
    fn accumulate(&mut self, frame: &mut Frame, value: ValueId, gradient: Gradient) {
        let Some(earlier) = frame.gradients[value].replace(gradient) else { return };
        let bytes = self.bytes(gradient.storage);
        let dispatch = self.settings.backward;
        let alone = self.counted[earlier.storage.0 as usize].references == 1;
        let sum = if alone && !earlier.view {
            self.retain(earlier.storage)
        } else {
            self.storage_as(bytes, Category::BackwardTemporary, "aten.add")
        };
        self.pointwise("aten.add", MemoryKind::Elementwise, 2 * bytes, bytes, dispatch);
        self.release(earlier.storage);
        self.release(gradient.storage);
        frame.gradients[value] = Some(sum.into());
    }
}

/// The last operator that a recompute with early stop runs: everything before the last operator that saves a value made
/// before it runs. The autograd node of a matmul packs its input before the kernel runs, and the recompute stops there.
fn early_stop_at(graph: &Graph) -> usize {
    let last = graph
        .ops
        .iter()
        .rposition(|op| {
            !matches!(
                op.kind,
                OpKind::Add
                    | OpKind::Cast
                    | OpKind::CastWeight
                    | OpKind::Scale
                    | OpKind::Split
                    | OpKind::Slice
                    | OpKind::Concat
            )
        })
        .unwrap_or(0);
    match graph.ops[last].kind {
        OpKind::Linear { .. } | OpKind::Mul | OpKind::Act(_) | OpKind::Square => last,
        OpKind::Experts(ExpertOp::Combine) => last,
        _ => last + 1,
    }
}
