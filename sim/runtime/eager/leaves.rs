//! Gradients of parameters as autograd leaves them (`torch/csrc/autograd/functions/accumulate_grad.h`).

use super::framework::{InternEvo, Nanotron, StepAtOnce};
use super::state::FrameworkState;
use super::storage::{Gradient, Leaf};
use super::{Eager, Storage};
use crate::program::{Category, DType, MemoryKind};
use crate::runtime::optimizer::Caller;

impl Eager {
    /// Casts a parameter's gradient to the type it is stored in, if it is the first and the type is wider
    /// (`param.grad_dtype`, `torch/csrc/autograd/input_metadata.cpp`).
    pub(in crate::runtime) fn upcast(&mut self, param: usize, gradient: Storage, from: DType) -> (Storage, DType) {
        match self.leaves.dtype.filter(|_| self.leaves.stored[param].is_none()) {
            Some(to) => (self.cast_gradient(gradient, from, to), to),
            None => (gradient, from),
        }
    }

    /// A gradient in another type, if it is one.
    pub(super) fn cast_gradient(&mut self, gradient: Storage, from: DType, to: DType) -> Storage {
        if to == from {
            return gradient;
        }
        let bytes = self.bytes(gradient);
        let wide = bytes / from.bytes() * to.bytes();
        let cast = self.storage_as(wide, Category::BackwardTemporary, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, bytes, wide, self.settings.backward);
        self.release(gradient);
        cast
    }

    /// Stores a parameter's gradient, or adds it in place to the one there is (`accumulate_grad.h`).
    pub(in crate::runtime) fn store_leaf(&mut self, param: usize, gradient: Storage, dtype: DType) {
        self.store(param, Gradient { storage: gradient, view: false }, dtype);
    }

    /// Does the same with a gradient that is a view.
    pub(super) fn store_view(&mut self, param: usize, gradient: Storage, dtype: DType) {
        self.store(param, Gradient { storage: gradient, view: true }, dtype);
    }

    fn store(&mut self, param: usize, gradient: Gradient, dtype: DType) {
        let view = gradient.view;
        let mut gradient = gradient.storage;
        if let Some(shared) = self.shared_as(param) {
            let Some(sum) = self.add_shared(param, Gradient { storage: gradient, view }) else { return };
            if sum.count < shared.uses {
                self.leaves.sums.push(sum);
                return;
            }
            gradient = sum.gradient.storage;
            if !shared.zeroed && self.fuses_accumulation() {
                self.release(gradient);
                return self.gradient_arrived(param);
            }
        }
        if let FrameworkState::Megatron(_) = self.framework {
            return self.add_to_main(param, gradient, dtype);
        }
        match self.leaves.stored[param] {
            None => {
                let buffer = self.storages.counted[gradient.0 as usize].buffer;
                self.program.recategorize(buffer, Category::UnshardedGradient);
                self.leaves.stored[param] = Some(Leaf { storage: gradient, dtype, part: None });
            }
            Some(leaf) => {
                let (total, more) = (leaf.part.unwrap_or_else(|| self.bytes(leaf.storage)), self.bytes(gradient));
                let dispatch = self.settings.backward;
                self.pointwise("aten.add_", MemoryKind::Elementwise, total + more, total, dispatch);
                if self.framework.torch().is_some() {
                    // The engine holds what it has added until the leaf's hooks have run.
                    self.leaf_took(param);
                    return self.release(gradient);
                }
                self.release(gradient);
            }
        }
        self.leaf_took(param);
    }

    /// What the framework does once a leaf has taken a parameter's gradient.
    fn leaf_took(&mut self, param: usize) {
        match &mut self.framework {
            FrameworkState::Torch(_) => {
                self.step_now(param);
                self.call(|around, eager| around.arrived(eager, param));
            }
            FrameworkState::DeepSpeed(_) => self.call(|around, eager| around.arrived(eager, param)),
            FrameworkState::InternEvo(InternEvo { hooks, .. })
            | FrameworkState::Nanotron(Nanotron { hooks: Some(hooks), .. }) => hooks.arrived(&mut self.program, param),
            FrameworkState::Nanotron(Nanotron { hooks: None, .. }) | FrameworkState::Megatron(_) => {}
        }
    }

    /// Steps a parameter with the gradient it has just got, and lets go of the gradient.
    fn step_now(&mut self, param: usize) {
        let FrameworkState::Torch(torch) = &mut self.framework else { return };
        let Some(StepAtOnce { optimizer, scope, params, has_state }) = &mut torch.step_at_once else { return };
        let (optimizer, scope, own) = (*optimizer, *scope, [params[param]]);
        let stepped = std::mem::replace(&mut has_state[param], true);
        let Some((gradient, dtype)) = self.take_leaf(param) else { return };
        let before = self.program.enter(scope);
        if !stepped {
            optimizer.make_state(&mut self.program, Caller::SingleDevice, &own, dtype.bytes());
        }
        optimizer.step(&mut self.program, Caller::SingleDevice, &own, dtype.bytes());
        self.program.enter(before);
        self.release(gradient);
    }

    /// Takes a parameter's gradient away, with its type.
    pub fn take_leaf(&mut self, param: usize) -> Option<(Storage, DType)> {
        self.leaves.stored[param].take().map(|leaf| (leaf.storage, leaf.dtype))
    }

    /// Makes a parameter's gradient a part, of so many bytes, of a storage that others share. Returns what it was before, with the
    /// reference that the leaf had.
    pub(in crate::runtime) fn set_leaf(
        &mut self,
        param: usize,
        whole: Storage,
        (dtype, bytes): (DType, u64),
    ) -> Option<Storage> {
        let storage = self.retain(whole);
        let before = self.leaves.stored[param].replace(Leaf { storage, dtype, part: Some(bytes) });
        before.map(|leaf| leaf.storage)
    }

    /// Whether a parameter has a gradient that is a part of a storage which others share.
    pub(in crate::runtime) fn leaf_is_part(&self, param: usize) -> bool {
        self.leaves.stored[param].is_some_and(|leaf| leaf.part.is_some())
    }

    /// Puts a gradient in the place of a parameter's (a cast one, between micro-batches).
    pub fn leaf(&self, param: usize) -> Option<(Storage, DType)> {
        self.leaves.stored[param].map(|leaf| (leaf.storage, leaf.dtype))
    }
}
