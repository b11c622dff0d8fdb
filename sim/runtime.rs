//! Runtimes: what a framework issues for a model, as a program.
//!
//! A runtime is a module here, which makes a plan ([`crate::plan`]) a [`Framework`], and a line in the scenario's registry; each is a
//! contract of its own, checked against that framework, not one generic parallelism. Today: [`fsdp`], PyTorch's
//! `fully_shard` (FSDP2) and its predecessor; [`ddp`], `DistributedDataParallel`; [`megatron`], Megatron-Core; [`internevo`], InternLM's; [`nanotron`]; [`spmd`], XLA on TPU.
//! Whatever runs above asks a [`Plan`], which is one of them.

pub mod compiled;
pub mod ddp;
pub mod eager;
mod flight;
mod framework;
pub mod fsdp;
pub mod internevo;
pub mod megatron;
pub mod nanotron;
pub mod optimizer;
mod refusal;
pub mod spmd;
pub mod train;
pub mod zero;

pub use crate::plan::{Parts, Plan};
pub use flight::Flight;
pub use framework::{Framework, Modules};
pub use refusal::Refusal;
