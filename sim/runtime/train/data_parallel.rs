//! `DistributedDataParallel` around a model that nothing shards: its reducer, and where forward and backward call it.

use std::cell::RefCell;
use std::rc::Rc;

use super::part::Part;
use super::plan::Layout;
use super::training::Training;
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
fn buffers(job: &TorchPlan) -> Buffers {
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

impl Training<'_> {
    /// Calls the reducer, where there is one.
    fn reduce<T>(&mut self, call: impl FnOnce(&mut Reducer, &mut Self) -> T) -> Option<T> {
        let reducer = Rc::clone(self.reducer.as_ref()?);
        let mut reducer = reducer.borrow_mut();
        Some(call(&mut reducer, self))
    }

    /// After the model has been made: `DistributedDataParallel(model)`.
    pub(super) fn data_parallel_set_up(&mut self) {
        let storage = self.job.fsdp.mixed_precision.storage;
        let params = self.layout.params.iter();
        let tensors = params.flat_map(|param| param.stored.tensors(param.elements(), storage.bytes())).collect();
        self.reduce(|reducer, training| reducer.set_up(&mut training.run.eager, vec![(storage, tensors)]));
    }

    /// Before the model's forward.
    pub(super) fn data_parallel_forward_begins(&mut self) {
        self.reduce(|reducer, training| reducer.pre_forward(&mut training.run.eager));
    }

    /// After it: whether what it returns is copied.
    pub(super) fn data_parallel_forward_ended(&mut self) -> bool {
        let reduces = self.run.reduce_gradients;
        self.reduce(|reducer, _| reducer.post_forward(reduces)).unwrap_or(false)
    }

    /// When autograd's engine ends a backward.
    pub(super) fn data_parallel_backward_ended(&mut self) {
        self.reduce(|reducer, training| reducer.finish(&mut training.run.eager));
    }

    /// After the first step: buckets as all later steps have them. PyTorch makes them when the second step's forward begins.
    pub(super) fn data_parallel_first_step_ended(&mut self) {
        self.reduce(|reducer, training| reducer.rebuild(&mut training.run.eager));
    }
}
