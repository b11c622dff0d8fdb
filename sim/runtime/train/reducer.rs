//! The reducer of a job under `DistributedDataParallel`: of which parameters and buffers.

use std::cell::RefCell;
use std::rc::Rc;

use super::part::Part;
use super::plan::Layout;
use crate::model::Position;
use crate::model::style::Rope;
use crate::model::transformers::class_of;
use crate::plan::torch::TorchPlan;
use crate::program::DType;
use crate::runtime::ddp::{Buffers, Ranks, Reducer};
use crate::runtime::fsdp::Communicators;

/// The reducer of a job, if it has one.
pub(super) fn reducer(job: &TorchPlan, layout: &Layout, communicators: &Communicators) -> Option<Rc<RefCell<Reducer>>> {
    let settings = job.ddp?;
    let ranks = Ranks { group: communicators.world, count: job.data_ranks() };
    let elements = layout.params.iter().map(|param| param.trained.then(|| param.elements())).collect();
    Some(Rc::new(RefCell::new(Reducer::new(settings, ranks, trained_dtype(job), elements, buffers(job)))))
}

/// The type of what is trained.
fn trained_dtype(job: &TorchPlan) -> DType {
    let adapters = job.trained.as_ref().and_then(|trained| trained.lora.as_ref());
    adapters.filter(|lora| lora.own_type).map_or(job.fsdp.mixed_precision.storage, |lora| lora.dtype)
}

/// What modules have registered as buffers: rotary tables or frequencies, and biases on attention scores.
pub(super) fn buffers(job: &TorchPlan) -> Buffers {
    let transformers = class_of(&job.model, job.style).is_some();
    let blocks = Part::whole(job).blocks.len();
    let list = match job.model.position {
        // `inv_freq` and `original_inv_freq`.
        Position::Rope { dims } if transformers => vec![(DType::Fp32, vec![2 * dims; 2])],
        Position::Rope { dims } => {
            let tables = if job.style.rope == Rope::ComplexByPosition { blocks } else { 1 };
            vec![(DType::Fp32, vec![job.max_positions * dims / 2 * 8; tables])]
        }
        Position::Alibi if job.eager.bias_tensor && !transformers => {
            let compute = job.fsdp.mixed_precision.compute();
            vec![(compute, vec![job.model.heads() * job.max_positions * job.max_positions * compute.bytes()])]
        }
        _ => vec![],
    };
    Buffers(list)
}
