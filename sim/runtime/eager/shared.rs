//! Parameters that a micro-batch uses several times: autograd adds their gradients up before it stores them
//! (`torch/csrc/autograd/input_buffer.cpp`).

use super::storage::{Gradient, SharedSum};
use super::{Eager, Shared};
use crate::program::{Category, MemoryKind};

impl Eager {
    /// How a parameter is used, if several times.
    pub(super) fn shared_as(&self, param: usize) -> Option<Shared> {
        self.leaves.shared.iter().find(|shared| shared.param == param).copied()
    }

    /// Adds one more gradient of a shared parameter: in place, unless the sum so far is a view.
    pub(super) fn add_shared(&mut self, param: usize, gradient: Gradient) -> Option<SharedSum> {
        let sums = &mut self.leaves.sums;
        let Some(at) = sums.iter().position(|sum| sum.param == param) else {
            sums.push(SharedSum { param, gradient, count: 1 });
            return None;
        };
        let SharedSum { gradient: sum, count, .. } = sums.swap_remove(at);
        let gradient = gradient.storage;
        let bytes = self.bytes(gradient);
        let mut total = sum.storage;
        if sum.view {
            total = self.storage_as(bytes, Category::BackwardTemporary, "aten.add");
            self.release(sum.storage);
        }
        self.pointwise("aten.add", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        self.release(gradient);
        Some(SharedSum { param, gradient: total.into(), count: count + 1 })
    }
}
