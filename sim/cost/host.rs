//! What the host thread pays for each class of dispatch, and the memory that no tensor owns.
//!
//! A host cost is one figure per class and belongs to a framework and a CPU, not to the chip; it stands in every
//! profile because the profile is what was measured on one machine.

use serde::Deserialize;

use super::basis::{Cost, Evidence};
use crate::program::Dispatch;
use crate::units::{Bytes, Time};

/// One class.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Class {
    time: Time,
    evidence: Evidence,
}

/// Host costs by class.
#[derive(Clone, Debug, Deserialize)]
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
            Dispatch::StepOverhead => &self.step_overhead,
        };
        class.evidence.cost(class.time.seconds())
    }
}

/// Device memory outside the allocator.
#[derive(Clone, Debug, Deserialize)]
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
