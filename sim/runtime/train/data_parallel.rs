//! Where forward and backward call the reducer of `DistributedDataParallel`, which is around a model that nothing shards.

use std::rc::Rc;

use super::training::Training;
use crate::runtime::ddp::Reducer;

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
        // A reference model is not wrapped.
        let own = self.layout.ends.last().copied().unwrap_or(0);
        let params = self.layout.params[..own].iter();
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
