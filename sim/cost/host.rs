//! What the host thread pays for each class of dispatch, and the memory that no tensor owns.
//!
//! A host cost is one figure per class and belongs to a framework and a CPU, not to the chip; it stands in every
//! profile because the profile is what was measured on one machine.

use serde::Deserialize;

use super::basis::{Basis, Cost, Evidence};
use crate::program::Dispatch;
use crate::units::{Bandwidth, Bytes, Time};

/// One class.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Class {
    time: Time,
    evidence: Evidence,
}

impl Class {
    /// What it costs once.
    pub(super) fn cost(&self) -> Cost {
        self.evidence.cost(self.time.seconds())
    }
}

/// Host costs by class.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    eager_forward: Class,
    eager_backward: Class,
    foreach: Class,
    compiled: Class,
    collective: Class,
    fsdp_hook: Class,
    fsdp_param: Class,
    optimizer_param: Class,
    extra: Class,
    grouped_matmul: Option<Class>,
    module_forward: Class,
    module_backward: Class,
    transformer_engine_forward: Class,
    transformer_engine_backward: Class,
    graph_forward: Class,
    graph_backward: Class,
    graph_launch: Class,
    synchronize: Class,
    step_overhead: Class,
}

impl Host {
    /// What one dispatch costs the host thread.
    pub fn cost(&self, dispatch: Dispatch) -> Cost {
        let class = match dispatch {
            Dispatch::EagerForward => &self.eager_forward,
            Dispatch::EagerBackward => &self.eager_backward,
            Dispatch::Foreach => &self.foreach,
            Dispatch::Compiled => &self.compiled,
            Dispatch::Collective => &self.collective,
            Dispatch::FsdpHook => &self.fsdp_hook,
            Dispatch::FsdpParam => &self.fsdp_param,
            Dispatch::OptimizerParam => &self.optimizer_param,
            Dispatch::Extra => &self.extra,
            Dispatch::GroupedMatmul => self.grouped_matmul.as_ref().unwrap_or(&self.extra),
            Dispatch::ModuleForward => &self.module_forward,
            Dispatch::ModuleBackward => &self.module_backward,
            Dispatch::TransformerEngineForward => &self.transformer_engine_forward,
            Dispatch::TransformerEngineBackward => &self.transformer_engine_backward,
            Dispatch::GraphForward => &self.graph_forward,
            Dispatch::GraphBackward => &self.graph_backward,
            Dispatch::GraphLaunch => &self.graph_launch,
            Dispatch::Synchronize => &self.synchronize,
            Dispatch::StepOverhead => &self.step_overhead,
            // Of TPUs, in a section of their own.
            Dispatch::LazyForward | Dispatch::LazyBackward | Dispatch::LazySync | Dispatch::LazyParameter => {
                return Cost::NOTHING;
            }
            Dispatch::Static => return Cost::NOTHING,
        };
        class.cost()
    }
}

/// What the host pays in PyTorch/XLA, which runs a step's Python to write the step down.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lazy {
    /// A block's forward.
    forward: Class,
    /// A block's backward.
    backward: Class,
    /// A block's part of the sync that ends the graph.
    sync: Class,
    /// A parameter in the optimizer.
    parameter: Class,
}

impl Lazy {
    /// What one dispatch costs the host thread, if it is one of PyTorch/XLA's.
    pub fn cost(&self, dispatch: Dispatch) -> Option<Cost> {
        let class = match dispatch {
            Dispatch::LazyForward => &self.forward,
            Dispatch::LazyBackward => &self.backward,
            Dispatch::LazySync => &self.sync,
            Dispatch::LazyParameter => &self.parameter,
            _ => return None,
        };
        Some(class.cost())
    }
}

/// What one rank's share of a node's memory bandwidth is worth to an optimizer that runs on the host: assumed, a
/// fifteenth of the 614 GB/s that two sockets with eight channels of DDR5-4800 have on paper, for each of eight ranks.
const HOST_MEMORY: Bandwidth = Bandwidth(40e9);
/// Half-width of the interval around it, relative: nobody measured it.
const HOST_MEMORY_SPREAD: f64 = 0.6;

/// Time of the host's own work on data in its memory.
pub(super) fn memory(bytes: Bytes) -> Cost {
    Cost { time: bytes / HOST_MEMORY, spread: HOST_MEMORY_SPREAD, basis: Basis::Assumed }
}

/// Device memory outside the allocator; none of it where a profile leaves the section out.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Overheads {
    /// CUDA context with the framework's kernels loaded.
    pub context: Bytes,
    /// The first NCCL communicator of a process.
    pub nccl_first: Bytes,
    /// Every further communicator.
    pub nccl_each: Bytes,
    /// cuBLAS workspace, one per handle and stream; taken through the caching allocator by PyTorch.
    pub cublas_workspace: Bytes,
    /// What they rest on; the error is relative.
    pub evidence: Evidence,
}

impl Overheads {
    /// A device whose memory is a program's alone, as a topology counts it.
    pub(super) fn none() -> Overheads {
        let nothing = Bytes(0);
        let source = "none is stated: what a program may use is the topology's memory".to_owned();
        let evidence = Evidence { basis: Basis::Assumed, source, points: 0, median: 0.0, p90: 0.0 };
        Overheads { context: nothing, nccl_first: nothing, nccl_each: nothing, cublas_workspace: nothing, evidence }
    }
}
