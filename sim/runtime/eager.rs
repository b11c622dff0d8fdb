//! Eager PyTorch: runs a module's forward operators, keeps what autograd keeps, and derives the backward.
//!
//! What decides peak memory is when each storage is taken and given back, so this follows the host order of
//! `torch/csrc/autograd/engine.cpp`: nodes run in reverse order of creation; a node's inputs (gradients of its outputs)
//! and saved tensors live until the node has allocated its results; a second gradient for the same value is added out
//! of place unless the first is free to be written to; a parameter's gradient is stored as soon as it is made. Values are reference-counted: Python's variables
//! hold one reference, every operator that saves a value holds another.
//!
//! Forward rules are in [`operator`], backward rules in [`node`]: an arm in each for every kind of operator in
//! [`crate::model::operators`]. Those of one kernel over memory share theirs ([`simple`]), and need a row alone.

mod accumulator;
pub mod around;
mod attention;
mod autocast;
mod auxiliary;
mod backward;
mod casts;
mod choice;
mod chosen;
mod chunked_loss;
mod compiled_cross_entropy;
mod composite;
mod counting;
mod cross_entropy;
mod embedding;
mod experts;
mod flash_cross_entropy;
mod flex;
mod forward;
mod frame;
pub mod framework;
mod fused_linear;
mod gated_delta;
mod gradients;
mod graphs;
mod halves;
mod holds;
mod in_graphs;
mod internlm;
mod keep;
mod kernels;
mod leaves;
pub mod main_gradients;
mod mamba;
mod megatron;
mod nanotron;
mod node;
mod norm;
pub mod offload;
mod operator;
mod packed;
mod parallel_cross_entropy;
mod params;
mod partial;
mod preference;
mod ranks;
mod recompute;
mod redistribute;
mod reentrant;
mod rotary;
mod selective;
mod sending;
mod shape;
mod shared;
mod side_stream;
mod simple;
mod stamp;
mod state;
mod storage;
mod titan;
mod to_main;
mod ulysses;
mod unfused;
mod unpad;
mod vocabulary;

pub use crate::plan::eager::{LayerNorm, Offload, Settings};
pub(super) use attention::attention_shape;
pub use frame::Frame;
pub use halves::LoopVariables;
pub use holds::HoldsStorages;
pub use keep::{Keep, Mode, Saved, SavedOps};
pub use megatron::{
    Context, Dispatcher, ExpertParallel, Heads, Later, Ring, Routing, Stage, exchanges_rows, fp8, vocabulary_parallel,
};
pub use params::{ParamMap, Shared};
pub use ranks::{BUFFER_STREAMS, ExpertRanks, Maxima, TensorGroup, Ulysses, UserBuffers};
pub use reentrant::Reentrant;
pub(super) use shape::{Exchanged, MatmulShape};
pub use stamp::Stamps;
pub use state::{DeepSpeed, Eager, FrameworkState, Torch};
pub use storage::{COMPUTE, Storage};
