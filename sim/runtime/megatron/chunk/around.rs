//! What a training loop does around the modules of its chunks.

use crate::plan::megatron::{CudaGraphs, Loader, MegatronPlan, Strategy};

/// What a chunk has to know of the loop around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// Where micro-batches come from.
    pub loader: Loader,
    /// What is captured in CUDA graphs.
    pub graphs: CudaGraphs,
    /// Whether the matmul of a weight gradient adds it to the main gradient.
    pub fused_accumulation: bool,
    /// Whether a block's result is a view, so that a hook can stand on its gradient: around Megatron-FSDP's units
    /// (`create_custom_backward_hook`).
    pub hooks_views: bool,
}

impl Around {
    /// Nothing: micro-batches are on the device, and autograd's gradients are all there is.
    pub const NOTHING: Around =
        Around { loader: Loader::There, graphs: CudaGraphs::None, fused_accumulation: false, hooks_views: false };

    /// What Megatron-Core does.
    pub(in crate::runtime::megatron) fn of(job: &MegatronPlan) -> Around {
        Around {
            loader: job.loader,
            graphs: job.graphs,
            fused_accumulation: job.gradients.fused_accumulation,
            hooks_views: job.fsdp.is_some_and(|fsdp| fsdp.strategy == Strategy::Parameters),
        }
    }
}
